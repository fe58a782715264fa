// List of all images with their captions; embedded images are drawn.

(() => {
  const data = JSON.parse(byId("data").textContent);
  const details = new Map(
    [...document.querySelectorAll(".detail")].map((script) => [script.dataset.id, script]),
  );
  const mainMetric = Math.max(data.metrics.indexOf("CIDEr"), 0);
  const score = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));

  for (const [position, item] of data.images.entries()) {
    item.position = position;
    const ids = [item.id, item.id.replace(/^0+/, "")];
    item.text = { caption: searchable(item.caption, ...ids) };
    item.text.all = searchable(item.caption, ...item.references, ...ids);
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
    drawScores(part, item);
    for (const reference of item.references) addText(part(".references"), "li", reference);
    drawBeams(part(".beams"), item.beams);
    return card;
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

  const show = makeList(draw);

  function update() {
    const key = byId("key").value, where = byId("where").value;
    const valueOf = values[key] ?? ((item) => item.scores[key] ?? null);
    const found = data.images.filter((item) => contains(item.text[where], byId("search").value));
    show(sorted(found, valueOf, Number(byId("direction").value)));
    showCount(found.length, data.images.length, "images");
  }

  const showRegions = () => byId("list").classList.toggle("no-regions", !byId("boxes").checked);
  byId("how").hidden = details.size === 0;
  byId("boxes").addEventListener("change", showRegions);
  byId("search").addEventListener("input", update);
  for (const id of ["where", "key", "direction"]) byId(id).addEventListener("change", update);
  // Browsers restore the form's values after a reload.
  showRegions();
  update();
  performance.mark("a2-ready");
})();
