// List of thousands of items: sorted and searched as data, drawn in parts as they come into view.

// Embedded images: id -> script element, parsed when its card is drawn.
const details = new Map([...document.querySelectorAll(".detail")].map((script) => [script.dataset.id, script]));

const detailOf = (item) => JSON.parse(details.get(item.id).textContent);
const data = JSON.parse(byId("data").textContent);
const mainMetric = Math.max(data.metrics.indexOf("CIDEr"), 0);
const score = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
const idsOf = (item) => [item.id, item.id.replace(/^0+/, "")];

// Text whose words all follow a blank, so that a search finds the beginnings of words.
const searchable = (...texts) => " " + texts.join(" ").toLowerCase();

const contains = (text, query) => query.toLowerCase().split(/\s+/).every((term) => text.includes(" " + term));

// Items by value, ties in their given order; those without a value last in both directions.
function sorted(items, valueOf, direction) {
  const order = (a, b) => (a === null) - (b === null) || (a < b ? -direction : a > b ? direction : 0);
  return [...items].sort((one, other) => order(valueOf(one), valueOf(other)));
}

// Returns a function that replaces the items of the list.
function makeList(draw) {
  const list = byId("list"), more = byId("more");
  let items = [], drawn = 0;

  function drawMore() {
    const next = items.slice(drawn, drawn + 10).map(draw);
    drawn += next.length;
    list.append(...next);
    more.hidden = drawn === items.length;
    // An observer reports only changes: without this, a short page would be the last one.
    observer.unobserve(more);
    if (!more.hidden) observer.observe(more);
    return next[0];
  }

  const observer = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && drawMore(), { rootMargin: "1500px" });
  more.onclick = () => drawMore()?.querySelector("button, summary")?.focus();
  return (wanted) => {
    [items, drawn] = [wanted, 0];
    list.replaceChildren();
    drawMore();
    byId("nothing").hidden = items.length > 0;
  };
}

function showCount(shown, all) {
  const of = shown < all ? ` of ${all.toLocaleString("en")}` : "";
  byId("count").value = `${shown.toLocaleString("en")}${of} images`;
}

// Keeps the values of a form's controls in the address. Returns a function to call after a change by program.
function keepInAddress(form, update) {
  const controls = [...form.querySelectorAll("input, select")];
  const valueOf = (control) => (control.type === "checkbox" ? String(control.checked) : control.value);
  form.reset(); // browsers restore values after a reload
  const initial = new Map(controls.map((control) => [control.id, valueOf(control)]));

  function read() {
    form.reset();
    for (const [id, value] of new URLSearchParams(location.hash.slice(1))) {
      const control = byId(id);
      // A number's control warns on the console of a text that is none.
      if (!controls.includes(control) || (control.type === "number" && Number.isNaN(Number(value)))) continue;
      control.checked = value === "true";
      if (control.type !== "checkbox") control.value = value;
      // A select shows nothing if the address names an option that it lacks.
      if (control.selectedIndex === -1) control.value = initial.get(id);
    }
  }

  function changed(control) {
    const state = controls.map((one) => [one.id, valueOf(one)]).filter(([id, value]) => value !== initial.get(id));
    history.replaceState(null, "", state.length ? `#${new URLSearchParams(state)}` : location.pathname + location.search);
    update(control);
  }

  form.oninput = ({ target }) => changed(target);
  byId("clear")?.addEventListener("click", () => {
    form.reset();
    changed();
  });
  window.onhashchange = () => {
    if (!location.hash.includes("=") && location.hash) return; // the link to the list
    read();
    update();
  };
  read();
  return changed;
}

// "/" focuses the search; submitting the form would reload the page.
byId("tools").onsubmit = (event) => event.preventDefault();
document.onkeydown = (event) => {
  if (event.key !== "/" || document.activeElement?.matches("input, select")) return;
  event.preventDefault();
  byId("search").focus();
};
