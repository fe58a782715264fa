"use strict";
// A list of thousands: sorted and searched as data, drawn a few at a time as they come into view.

const AT_ONCE = 20;

const byId = (id) => document.getElementById(id);

// Text in which a term is found where a word begins: after a blank.
const searchable = (...texts) => " " + texts.join(" ").toLowerCase();

function contains(text, query) {
  const terms = query.toLowerCase().split(/\s+/).filter(Boolean);
  return terms.every((term) => text.includes(" " + term));
}

// Items by value, equal ones as they were; those without a value last, whatever the direction.
function sorted(items, valueOf, direction) {
  const order = (a, b) => (a < b ? -direction : a > b ? direction : 0);
  const has = (item) => valueOf(item) !== null;
  const valued = items.filter(has).sort((one, other) => order(valueOf(one), valueOf(other)));
  return [...valued, ...items.filter((item) => !has(item))];
}

// Draws items into the list; returns the function that shows others instead.
function makeList(draw) {
  const list = byId("list"), more = byId("more");
  let items = [], drawn = 0;

  function drawMore() {
    const next = items.slice(drawn, drawn + AT_ONCE).map(draw);
    drawn += next.length;
    list.append(...next);
    more.hidden = drawn === items.length;
    // An observer tells only of changes: without this, a short screenful would be the last one.
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

function sayCount(shown, all, what) {
  const of = shown < all ? ` of ${all.toLocaleString("en")}` : "";
  byId("count").value = `${shown.toLocaleString("en")}${of} ${what}`;
}

function addText(parent, tag, text, kind) {
  const element = document.createElement(tag);
  element.textContent = text;
  if (kind) element.className = kind;
  parent.append(element);
  return element;
}

// "/" goes to the search; a form that is sent would load the page anew.
byId("tools").addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || document.activeElement?.matches("input, select")) return;
  event.preventDefault();
  byId("search").focus();
});
