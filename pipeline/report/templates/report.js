// The report: seven examples, and the list of all images with their captions.

(() => {
  const wordsOf = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  // Computed when it is first needed: most items are neither searched nor drawn.
  function textOf(item) {
    if (!item.text) {
      const caption = searchable(item.caption, ...idsOf(item));
      item.text = { caption, all: searchable(...item.references) + caption };
    }
    return item.text;
  }
  function unknownOf(item) {
    if (!item.unknown) {
      const known = new Set(item.references.flatMap(wordsOf));
      item.unknown = wordsOf(item.caption).filter((word) => !known.has(word));
    }
    return item.unknown;
  }

  const valueOf = (item) => item.scores[mainMetric] ?? null;
  const ordered = data.images.map(valueOf).filter((value) => value !== null).sort((a, b) => a - b);
  const median = ordered[ordered.length >> 1] ?? 0;
  const distance = (item) => Math.abs(valueOf(item) - median);
  const examples = new Set();
  const values = {
    // The examples are above the list already.
    typical: (item) => (valueOf(item) === null ? null : examples.has(item) ? Infinity : distance(item)),
    id: (item) => item.id,
    length: (item) => item.caption.split(" ").length,
    grounding: (item) => item.grounding?.[1] ?? null,
  };

  function draw(item) {
    const card = makeCard(), part = (name) => card.querySelector(name);
    card.dataset.id = item.id;
    card.setAttribute("aria-label", item.caption || item.id);
    part(".caption").textContent = item.caption || "(empty caption)";
    // A person's caption is the best alternative text.
    if (details.has(item.id)) addImage(card, detailOf(item), { alt: item.references[0] ?? item.caption });
    if (item.false?.length) markFalse(part(".caption"), item.false);
    addZoom(card);
    drawScores(part, item);
    for (const reference of item.references) addText(part(".references"), "li", reference);
    part(".beams").hidden = item.beams.length < 2;
    part(".beams summary").textContent = orderOf(`${item.beams.length} beams`, item.beams.map(([, ranked]) => ranked));
    for (const [caption, ranked] of item.beams) {
      addText(addText(part(".beams ol"), "li", `${caption} `), "span", score(ranked));
    }
    return card;
  }

  // Marks the words of false statements about a generated scene.
  function markFalse(heading, positions) {
    const words = wordElements(heading);
    for (const position of positions) {
      words[position].classList.add("false");
      words[position].title = "false of this image";
    }
  }

  function drawScores(part, item) {
    const value = valueOf(item), others = part(".others");
    const addNamed = (name, text) => addText(addText(others, "span", `${name} `), "b", text);
    part(".score").hidden = value === null;
    part(".score").style.setProperty("--share", Math.min((value ?? 0) / 2, 1));
    part(".score b").textContent = score(value);
    part(".score span").textContent = data.metrics[mainMetric];
    data.metrics.forEach((name, i) => i === mainMetric || item.scores[i] === null || addNamed(name, score(item.scores[i])));
    if (item.grounding) {
      const [original, aligned, uniform] = item.grounding;
      const both = original === aligned ? score(original) : `α ${score(original)}, αᵃ ${score(aligned)}`;
      addNamed("attention on named objects", `${both} (uniform ${score(uniform)})`);
    }
    if (unknownOf(item).length) addNamed("in no reference", unknownOf(item).join(", "));
    addText(others, "span", item.id, "id");
  }

  // Draws seven examples, also on a page that was saved with them; of those near an end or the median, first the ones with a word that stands out.
  function drawFirst() {
    const left = new Set(data.images.filter((item) => details.has(item.id) && valueOf(item) !== null));
    const isEven = (item) => (detailOf(item).attention?.telling ?? null) === null;
    const take = (kind, count, ...order) =>
      sorted([...left], ...order).slice(0, 4 * count).sort((a, b) => isEven(a) - isEven(b)).slice(0, count).map((item) => {
        left.delete(item);
        examples.add(item);
        const card = draw(item);
        card.querySelector(".score").prepend(`${kind} · `);
        return card;
      });
    const best = take("best", 2, valueOf, -1), worst = take("worst", 2, valueOf, 1);
    const [hero, ...typical] = take("typical", 3, distance, 1);
    hero?.classList.add("hero");
    byId("first").replaceChildren(...[hero, typical[0], ...best, typical[1], ...worst].filter(Boolean));
    byId("first").hidden = !best.length;
    // Captions from a file have no attention, and then nothing is marked.
    byId("hint").hidden = !byId("first").querySelector(".word.shown");
  }

  // Each returns true for the items that its control lets through.
  const chosen = {
    true: (item) => !item.false.length,
    false: (item) => item.false.length > 0,
    known: (item) => !unknownOf(item).length,
    unknown: (item) => unknownOf(item).length > 0,
    // On target: more attention on the named objects than uniform attention would have.
    on: (item) => item.grounding !== null && item.grounding[1] > item.grounding[2],
    off: (item) => item.grounding !== null && item.grounding[1] <= item.grounding[2],
  };
  const filters = {
    search: (item, text) => contains(textOf(item)[byId("where").value], text),
    filter: (item, which) => chosen[which](item),
    least: (item, number) => item.scores[mainMetric] >= Number(number),
    most: (item, number) => item.scores[mainMetric] <= Number(number),
  };

  let found = [];
  const show = makeList(draw);
  const display = ["boxes", "truth", "view", "head"];

  function update(control) {
    const { classList } = document.body;
    for (const which of ["top", "all"]) classList.toggle(`boxes-${which}`, byId("boxes").value === which);
    classList.toggle("truth", byId("truth").checked);
    byId("list").classList.toggle("tiles", byId("view").value === "grid");
    if (control?.id === "head") for (const card of document.querySelectorAll(".card")) card.dispatchEvent(new Event("redraw"));
    if (display.includes(control?.id)) return; // drawing again would lose pinned words
    const [key, direction] = (byId("order").value || "typical 1").split(" ");
    const active = Object.entries(filters).filter(([id]) => byId(id)?.value);
    const passed = data.images.filter((item) => active.every(([id, passes]) => passes(item, byId(id).value)));
    found = sorted(passed, values[key] ?? ((item) => item.scores[key] ?? null), Number(direction));
    for (const bar of document.querySelectorAll("#histogram rect")) {
      bar.setAttribute("aria-pressed", bar.dataset.from === byId("least").value && bar.dataset.to === byId("most").value);
    }
    show(found);
    showCount(found.length, data.images.length);
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

  // Fills the choice of layers and heads with those of the first image that has them.
  function offerHeads() {
    const script = [...details.values()].find(({ textContent }) => textContent.includes('"layers":[{'));
    const layers = script ? JSON.parse(script.textContent).attention.layers : [];
    byId("head").length = 1; // of a saved page, that has them
    byId("head-label").hidden = layers.length * (layers[0]?.heads ?? 0) < 2;
    layers.forEach(({ heads }, layer) => {
      for (const one of [[layer], ...(heads > 1 ? range(heads).map((head) => [layer, head]) : [])]) {
        addText(byId("head"), "option", headName(one)).value = one.map((number) => number + 1).join(".");
      }
    });
  }

  const rows = () =>
    found.map(({ id, caption, references, ...item }) => ({
      id,
      caption,
      references,
      ...Object.fromEntries(data.metrics.map((name, i) => [name, item.scores[i]])),
    }));
  byId("csv").addEventListener("click", () => download("captions.csv", "text/csv", asCsv(rows())));
  byId("json").addEventListener("click", () =>
    download("captions.json", "application/json", JSON.stringify(rows(), null, 1)),
  );

  // A page on the disk knows its folder, with which the command runs.
  const [, root, below] = location.protocol === "file:" ? decodeURIComponent(location.pathname).match(/^(.+)(\/[^/]+\/[^/]+)\/[^/]*$/) ?? [] : [];
  const quoted = (path) => (/[^\w./-]/.test(path) ? `'${path.replaceAll("'", "'\\''")}'` : path);
  for (const command of root ? document.querySelectorAll("code") : []) {
    command.textContent = command.textContent.replace("-c config.yaml", () => `-c ${quoted(`${root}${below}/config.yaml`)} --artifacts ${quoted(root)}`);
  }

  document.addEventListener("click", ({ target }) => {
    if (!target.matches(".copy")) return;
    const text = target.previousElementSibling;
    getSelection().selectAllChildren(text);
    // A page from disk may lack the clipboard; the text is then selected, to be copied by keys.
    navigator.clipboard?.writeText(text.textContent).then(() => (target.textContent = "Copied"), () => {});
  });

  byId("truth-label").hidden = ![...details.values()].some((script) => !script.textContent.includes('"truth":null'));
  offerHeads();
  const changed = keepInAddress(byId("tools"), update);
  drawFirst();
  update();
  performance.mark("a2-ready");
})();
