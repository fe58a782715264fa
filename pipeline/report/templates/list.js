"use strict";
// List of thousands of items: sorted and searched as data, drawn in parts as they come into view.

const PAGE_SIZE = 20;

const byId = (id) => document.getElementById(id);

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

function showCount(shown, all, noun) {
  const of = shown < all ? ` of ${all.toLocaleString("en")}` : "";
  byId("count").value = `${shown.toLocaleString("en")}${of} ${noun}`;
}

function addText(parent, tag, text, kind) {
  const element = document.createElement(tag);
  element.textContent = text;
  if (kind) element.className = kind;
  parent.append(element);
  return element;
}

// "/" focuses the search; submitting the form would reload the page.
byId("tools").addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || document.activeElement?.matches("input, select")) return;
  event.preventDefault();
  byId("search").focus();
});
