// List of images with the captions of both runs, each with its attention.

const signed = (value) => (value === null ? "–" : (value < 0 ? "−" : "+") + Math.abs(value).toFixed(3));

function difference(item, metric) {
  const [before, after] = item.scores.map((values) => values[metric] ?? null);
  return before === null || after === null ? null : after - before;
}

// Adds the caption of one run; words that are not in the other caption are marked.
function addSide(parent, item, run, sides) {
  const card = makeCard(), caption = card.querySelector(".caption");
  const other = new Set(item.captions[1 - run].split(" "));
  const { thumbnail: src } = sides.find((side) => side?.thumbnail) ?? {};
  const shown = sides[run] ?? (sides[1 - run] && { ...sides[1 - run], attention: null });
  caption.textContent = item.captions[run];
  if (shown) addImage(card, shown, { src, alt: item.references[0] ?? "" });
  for (const word of wordElements(caption)) if (!other.has(word.textContent)) word.classList.add("changed");
  card.prepend(addText(card, "p", data.names[run], "eyebrow"));
  parent.append(card);
}

function draw(item) {
  const pair = byId("pair").content.firstElementChild.cloneNode(true);
  const part = (name) => pair.querySelector(name);
  pair.dataset.id = item.id;
  part("h2 b").textContent = signed(difference(item, mainMetric));
  part("h2 span").textContent = `${data.metrics[mainMetric]}, ${item.change}`;
  const sides = details.has(item.id) ? detailOf(item) : [];
  for (const run of [0, 1]) addSide(part(".sides"), item, run, sides);
  for (const reference of item.references) addText(part(".references"), "li", reference);
  data.metrics.forEach((name, metric) => {
    const row = part(".values tbody").insertRow();
    addText(row, "th", name).scope = "row";
    for (const values of item.scores) addText(row, "td", score(values[metric]));
    addText(row, "td", signed(difference(item, metric)));
  });
  addText(part(".others"), "span", item.id, "id");
  return pair;
}

const show = makeList(draw);
const textOf = (item) => (item.text ??= searchable(...item.captions, ...item.references, ...idsOf(item)));

function update() {
  const change = byId("change").value, [metric, direction] = byId("order").value.split(" ");
  const wanted = (item) => (change ? item.change === change : item.change !== "same");
  const found = data.images.filter((item) => wanted(item) && contains(textOf(item), byId("search").value));
  const most = (item) => Math.abs(difference(item, mainMetric));
  show(sorted(found, direction ? (item) => difference(item, metric) : most, Number(direction ?? -1)));
  showCount(found.length, data.images.length);
}

keepInAddress(byId("tools"), update);
update();
