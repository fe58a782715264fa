// List of all images with their captions; embedded images are drawn.

(() => {
  const wordsOf = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];

  for (const [position, item] of data.images.entries()) {
    item.position = position;
    item.text = { caption: searchable(item.caption, ...idsOf(item)) };
    item.text.all = searchable(item.caption, ...item.references, ...idsOf(item));
    const known = new Set(item.references.flatMap(wordsOf));
    item.unknown = wordsOf(item.caption).filter((word) => !known.has(word));
  }

  const values = {
    id: (item) => item.id,
    length: (item) => item.caption.split(" ").length,
    grounding: (item) => item.grounding?.[1] ?? null,
  };

  function draw(item) {
    const card = byId("card").content.firstElementChild.cloneNode(true);
    const part = (name) => card.querySelector(name);
    card.dataset.id = item.id;
    part(".caption").id = `caption-${item.position}`;
    part(".caption").textContent = item.caption || "(empty caption)";
    card.setAttribute("aria-labelledby", `caption-${item.position}`);
    if (details.has(item.id)) {
      // A person's caption is the best alternative text.
      addImage(card, JSON.parse(details.get(item.id).textContent), item.references[0] ?? item.caption);
    }
    markFalse(part(".caption"), item.false ?? []);
    addZoom(card, part(".zoom"));
    drawScores(part, item);
    for (const reference of item.references) addText(part(".references"), "li", reference);
    drawBeams(part(".beams"), item.beams);
    return card;
  }

  // Marks the words of false statements about a generated scene.
  function markFalse(heading, positions) {
    if (!positions.length) return;
    if (!heading.querySelector(".token")) {
      const words = heading.textContent.split(" ");
      heading.replaceChildren();
      for (const word of words) {
        addText(heading, "span", word, "word");
        heading.append(" ");
      }
    }
    for (const position of positions) {
      const word = heading.querySelectorAll(".token, .word")[position];
      word.classList.add("false");
      word.title = "false of this image";
    }
  }

  function addZoom(card, button) {
    button.addEventListener("click", () => {
      const isLarge = card.classList.toggle("large");
      button.setAttribute("aria-pressed", isLarge);
      button.textContent = isLarge ? "Reduce" : "Enlarge";
      card.scrollIntoView({ block: "nearest" });
    });
  }

  function drawScores(part, item) {
    const value = item.scores[mainMetric];
    part(".score").hidden = value === undefined;
    part(".score").style.setProperty("--share", Math.min((value ?? 0) / 2, 1));
    part(".score b").textContent = score(value);
    part(".score span").textContent = data.metrics[mainMetric];
    const others = part(".others");
    data.metrics.forEach((name, i) => i === mainMetric || addNamed(others, name, score(item.scores[i])));
    if (item.grounding) {
      const [original, aligned, uniform] = item.grounding;
      const both = original === aligned ? score(original) : `α ${score(original)}, αᵃ ${score(aligned)}`;
      addNamed(others, "attention on named objects", `${both} (uniform ${score(uniform)})`);
    }
    if (item.unknown.length) addNamed(others, "in no reference", item.unknown.join(", "));
    addText(others, "span", item.id, "id");
  }

  function addNamed(parent, name, text) {
    const element = addText(parent, "span", `${name} `);
    addText(element, "b", text);
  }

  function drawBeams(beams, found) {
    beams.hidden = found.length < 2;
    beams.querySelector("summary").textContent = `${found.length} beams`;
    for (const [caption, ranked] of found) {
      const line = addText(beams.querySelector("ol"), "li", `${caption} `);
      addText(line, "span", score(ranked), "quiet");
    }
  }

  // Each returns true for the items that its control lets through.
  const filters = {
    search: (item, text) => contains(item.text[byId("where").value], text),
    least: (item, number) => item.scores[mainMetric] >= Number(number),
    most: (item, number) => item.scores[mainMetric] <= Number(number),
    words: (item, which) => (which === "known") === (item.unknown.length === 0),
    // On target: more attention on the named objects than uniform attention would have.
    target: (item, which) => item.grounding !== null && (which === "on") === item.grounding[1] > item.grounding[2],
  };

  let found = [];
  const show = makeList(draw);

  const display = ["boxes", "truth", "view-as", "head"];

  function update(control) {
    showBoxes();
    if (control?.id === "head") for (const card of byId("list").children) card.dispatchEvent(new Event("head"));
    if (display.includes(control?.id)) return; // drawing again would lose pinned tokens
    const key = byId("key").value;
    const valueOf = values[key] ?? ((item) => item.scores[key] ?? null);
    const active = Object.entries(filters).filter(([id]) => byId(id)?.value);
    const passed = data.images.filter((item) => active.every(([id, passes]) => passes(item, byId(id).value)));
    found = sorted(passed, valueOf, Number(byId("direction").value));
    for (const bar of document.querySelectorAll("#histogram rect")) {
      const isInside = bar.dataset.from === byId("least").value && bar.dataset.to === byId("most").value;
      bar.setAttribute("aria-pressed", isInside);
    }
    show(found);
    showCount(found.length, data.images.length, "images");
  }

  function showBoxes() {
    const list = byId("list");
    for (const which of ["top", "all"]) list.classList.toggle(`boxes-${which}`, byId("boxes").value === which);
    list.classList.toggle("truth", byId("truth").checked);
    list.classList.toggle("grid", byId("view-as").value === "grid");
  }

  // A second click on the same bar removes the filter.
  function chooseBar(bar) {
    const isChosen = bar.getAttribute("aria-pressed") === "true";
    byId("least").value = isChosen ? "" : bar.dataset.from;
    byId("most").value = isChosen ? "" : bar.dataset.to;
    changed();
  }

  for (const bar of document.querySelectorAll("#histogram rect")) {
    bar.addEventListener("click", () => chooseBar(bar));
    bar.addEventListener("keydown", (event) => ["Enter", " "].includes(event.key) && chooseBar(bar));
  }

  const rows = () =>
    found.map((item) => ({
      id: item.id,
      caption: item.caption,
      references: item.references,
      ...Object.fromEntries(data.metrics.map((name, i) => [name, item.scores[i]])),
    }));
  byId("csv").addEventListener("click", () => download("captions.csv", "text/csv", asCsv(rows())));
  byId("json").addEventListener("click", () =>
    download("captions.json", "application/json", JSON.stringify(rows(), null, 1)),
  );

  const hasTruth = [...details.values()].some((script) => !script.textContent.includes('"truth":null'));
  byId("truth-label").hidden = !hasTruth;
  offerHeads();
  byId("how").hidden = details.size === 0;
  byId("saved").textContent = new Date(document.lastModified).toISOString().slice(0, 10);
  byId("saved").parentElement.hidden = false;
  const changed = keepInAddress(byId("tools"), update);
  update();
  performance.mark("a2-ready");
})();
