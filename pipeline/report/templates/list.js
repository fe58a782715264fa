// List of thousands of items: sorted and searched as data, drawn in parts as they come into view.

const PAGE_SIZE = 10;

// Embedded images: id -> script element, parsed when its card is drawn.
const details = new Map([...document.querySelectorAll(".detail")].map((script) => [script.dataset.id, script]));

const detailOf = (item) => JSON.parse(details.get(item.id).textContent);
const data = JSON.parse(byId("data").textContent);
const mainMetric = Math.max(data.metrics.indexOf("CIDEr"), 0);
const score = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
const idsOf = (item) => [item.id, item.id.replace(/^0+/, "")];

// Text whose words all follow a blank, so that a search finds the beginnings of words.
const searchable = (...texts) => " " + texts.join(" ").toLowerCase();

function contains(text, query) {
  const terms = query.toLowerCase().split(/\s+/).filter(Boolean);
  return terms.every((term) => text.includes(" " + term));
}

// Items by value, ties in their given order; those without a value last in both directions.
function sorted(items, valueOf, direction) {
  const order = (a, b) => (a < b ? -direction : a > b ? direction : 0);
  const has = (item) => valueOf(item) !== null;
  const valued = items.filter(has).sort((one, other) => order(valueOf(one), valueOf(other)));
  return [...valued, ...items.filter((item) => !has(item))];
}

// Returns a function that replaces the items of the list.
function makeList(draw) {
  const list = byId("list"), more = byId("more");
  let items = [], drawn = 0;

  function drawMore() {
    const next = items.slice(drawn, drawn + PAGE_SIZE).map(draw);
    drawn += next.length;
    list.append(...next);
    more.hidden = drawn === items.length;
    // An observer reports only changes: without this, a short page would be the last one.
    observer.unobserve(more);
    if (!more.hidden) observer.observe(more);
    return next[0];
  }

  const observer = new IntersectionObserver(
    (entries) => entries.some((entry) => entry.isIntersecting) && drawMore(),
    { rootMargin: "1500px" },
  );
  more.addEventListener("click", () => drawMore()?.querySelector("button, summary")?.focus());
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

// Keeps the values of a form's controls in the address, so that a view can be sent. Returns a function
// to call after a change by program.
function keepInAddress(form, update) {
  const controls = [...form.querySelectorAll("input, select")];
  const valueOf = (control) => (control.type === "checkbox" ? String(control.checked) : control.value);
  const set = (control, value) => (control.type === "checkbox" ? (control.checked = value === "true") : (control.value = value));
  form.reset(); // browsers restore values after a reload
  const initial = new Map(controls.map((control) => [control.id, valueOf(control)]));

  function read() {
    const state = new URLSearchParams(location.hash.slice(1));
    for (const control of controls) {
      const value = state.get(control.id) ?? initial.get(control.id);
      // A number's control warns on the console of a text that is none.
      const isText = control.type === "number" && Number.isNaN(Number(value));
      set(control, isText ? initial.get(control.id) : value);
      // A select shows nothing if the address names an option that it lacks.
      if (control.selectedIndex === -1) set(control, initial.get(control.id));
    }
  }

  function changed(control) {
    const state = controls.filter((control) => valueOf(control) !== initial.get(control.id));
    const text = new URLSearchParams(state.map((control) => [control.id, valueOf(control)])).toString();
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
    update(control);
  }

  for (const control of controls) {
    const event = control.matches("select, [type=checkbox]") ? "change" : "input";
    control.addEventListener(event, () => changed(control));
  }
  byId("clear")?.addEventListener("click", () => {
    form.reset();
    changed();
  });
  window.addEventListener("hashchange", () => {
    if (!location.hash.includes("=") && location.hash) return; // the link to the list
    read();
    update();
  });
  read();
  return changed;
}

function asCsv(rows) {
  // A spreadsheet would run a text that begins like a formula.
  const cell = (value) => {
    const text = [value ?? ""].flat().join(" | ");
    const safe = typeof value !== "number" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return `"${safe.replaceAll('"', '""')}"`;
  };
  const names = Object.keys(rows[0] ?? {});
  return [names, ...rows.map((row) => names.map((name) => row[name]))]
    .map((line) => line.map(cell).join(",") + "\r\n")
    .join("");
}

// "/" focuses the search; submitting the form would reload the page.
byId("tools").addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || document.activeElement?.matches("input, select")) return;
  event.preventDefault();
  byId("search").focus();
});
