"use strict";
(() => {
  const main = document.getElementById("pictures");
  const cards = [...main.querySelectorAll(".card")];
  const text = new Map(cards.map((card) => [card, card.textContent.toLowerCase()]));
  const search = document.getElementById("search");
  const order = document.getElementById("order");

  const orders = {
    worst: (a, b) => a.dataset.cider - b.dataset.cider,
    best: (a, b) => b.dataset.cider - a.dataset.cider,
    id: (a, b) => (a.dataset.id < b.dataset.id ? -1 : 1),
  };

  function sort() {
    main.append(...cards.sort(orders[order.value]));
  }

  function filter() {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const card of cards) {
      const content = text.get(card);
      card.hidden = !wanted.every((word) => content.includes(word));
      shown += !card.hidden;
    }
    const of = shown < cards.length ? ` of ${cards.length.toLocaleString("en")}` : "";
    document.getElementById("count").value = `${shown.toLocaleString("en")}${of} pictures`;
    document.getElementById("nothing").hidden = shown > 0;
  }

  function point(regions, rect) {
    regions.querySelector(".current")?.classList.remove("current");
    rect?.classList.add("current");
    const readout = regions.closest(".picture").querySelector(".readout");
    readout.textContent = rect ? rect.querySelector("title").textContent : readout.dataset.rest;
  }

  function step(event) {
    const regions = event.target.closest(".regions");
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!regions || !(by || event.key === "Escape")) return;
    event.preventDefault();
    const count = regions.querySelectorAll("rect").length;
    const current = Number(regions.querySelector(".current")?.dataset.region ?? (by > 0 ? 0 : 1));
    const next = ((current - 1 + by + count) % count) + 1;
    point(regions, by ? regions.querySelector(`[data-region="${next}"]`) : null);
  }

  main.addEventListener("pointerover", (event) => {
    if (event.target.matches(".regions rect")) point(event.target.closest(".regions"), event.target);
  });
  main.addEventListener("pointerout", (event) => {
    const regions = event.target.closest(".regions");
    // A finger leaves with the tap; what it chose stays.
    if (event.pointerType === "touch" || !regions) return;
    if (!regions.contains(event.relatedTarget)) point(regions, null);
  });
  main.addEventListener("keydown", step);
  main.addEventListener("focusout", (event) => {
    if (event.target.matches(".regions")) point(event.target, null);
  });
  document.getElementById("boxes").addEventListener("change", (event) => {
    main.classList.toggle("no-regions", !event.target.checked);
  });
  search.addEventListener("input", filter);
  order.addEventListener("change", sort);
  document.getElementById("tools").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || document.activeElement?.matches("input, select")) return;
    event.preventDefault();
    search.focus();
  });

  // A browser keeps what was typed and chosen over a reload.
  main.classList.toggle("no-regions", !document.getElementById("boxes").checked);
  sort();
  filter();
})();
