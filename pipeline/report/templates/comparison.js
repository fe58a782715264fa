// List of images with the captions of both runs.

(() => {
  const signed = (value) => (value === null ? "–" : (value < 0 ? "−" : "+") + Math.abs(value).toFixed(3));

  for (const item of data.images) {
    item.text = searchable(...item.captions, ...item.references, ...idsOf(item));
  }

  function difference(item, metric) {
    const [before, after] = item.scores.map((values) => values[metric] ?? null);
    return before === null || after === null ? null : after - before;
  }

  // Marks words that are not in the other caption.
  function addCaption(parent, caption, other) {
    const known = new Set(other.split(" "));
    for (const word of caption.split(" ")) {
      addText(parent, known.has(word) ? "span" : "mark", word);
      parent.append(" ");
    }
  }

  function draw(item) {
    const card = byId("card").content.firstElementChild.cloneNode(true);
    const part = (name) => card.querySelector(name);
    card.dataset.id = item.id;
    card.classList.add(item.change);
    card.setAttribute("aria-label", `${item.id}, ${item.change}`);
    part(".score b").textContent = signed(difference(item, mainMetric));
    part(".score span").textContent = data.metrics[mainMetric];
    part(".badge").textContent = item.change;
    if (details.has(item.id)) {
      const image = part(".thumbnail");
      const { thumbnail } = JSON.parse(details.get(item.id).textContent);
      if (thumbnail) [image.alt, image.src, image.hidden] = [item.references[0] ?? "", thumbnail, false];
    }
    data.names.forEach((name, run) => {
      addText(part(".captions"), "dt", name);
      addCaption(addText(part(".captions"), "dd", "", "caption"), item.captions[run], item.captions[1 - run]);
      part(".values").querySelectorAll("thead th")[1 + run].textContent = name;
    });
    for (const reference of item.references) addText(part(".references"), "li", reference);
    data.metrics.forEach((name, metric) => {
      const row = part(".values tbody").insertRow();
      addText(row, "th", name).scope = "row";
      for (const values of item.scores) addText(row, "td", score(values[metric]));
      addText(row, "td", signed(difference(item, metric)));
    });
    addText(part(".others"), "span", item.id, "id");
    return card;
  }

  const show = makeList(draw);

  function update() {
    const change = byId("change").value, metric = Number(byId("key").value);
    const wanted = (item) => (change ? item.change === change : item.change !== "same");
    const found = data.images.filter((item) => wanted(item) && contains(item.text, byId("search").value));
    show(sorted(found, (item) => difference(item, metric), Number(byId("direction").value)));
    showCount(found.length, data.images.length, "images");
  }

  keepInAddress(byId("tools"), update);
  update();
})();
