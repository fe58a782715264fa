// Seven examples, and the list of all images with their captions.

const wordsOf = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
// Computed when it is first needed: most items are neither searched nor drawn.
const textOf = (item) =>
  (item.text ??= { caption: searchable(item.caption, ...idsOf(item)), all: searchable(...item.references, item.caption, ...idsOf(item)) });
const unknownOf = (item) =>
  (item.unknown ??= [...new Set(wordsOf(item.caption)).difference(new Set(item.references.flatMap(wordsOf)))]);

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
  card.ariaLabel = item.caption || item.id;
  part(".caption").textContent = item.caption || "(empty caption)";
  // A person's caption is the best alternative text.
  if (details.has(item.id)) addImage(card, detailOf(item), { alt: item.references[0] ?? item.caption });
  const words = item.false?.length ? wordElements(part(".caption")) : [];
  for (const position of item.false ?? []) Object.assign(words[position], { className: `${words[position].className} false`, title: "false of this image" });
  addZoom(card);
  drawScores(part, item);
  for (const reference of item.references) addText(part(".references"), "li", reference);
  part(".beams").hidden = item.beams.length < 2;
  addBeams(card, `${item.beams.length} beams`, item.beams.map(([caption, ranked]) => [caption, ranked, score(ranked)]));
  return card;
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
    const [original, aligned, uniform] = item.grounding.map(score), both = original === aligned ? original : `α ${original}, αᵃ ${aligned}`;
    addNamed("attention on named objects", `${both} (uniform ${uniform})`);
  }
  if (unknownOf(item).length) addNamed("in no reference", unknownOf(item).join(", "));
  addText(others, "span", item.id, "id");
}

// Draws seven examples, also on a page that was saved with them; of candidates, first those with a word that stands out.
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
  false: (item) => item.false.length,
  known: (item) => !unknownOf(item).length,
  unknown: (item) => unknownOf(item).length,
  // On target: more attention on the named objects than uniform attention would have.
  on: ({ grounding }) => grounding?.[1] > grounding?.[2],
  off: ({ grounding }) => grounding?.[1] <= grounding?.[2],
};
const filters = {
  search: (item, text) => contains(textOf(item)[byId("where").value], text),
  filter: (item, which) => chosen[which](item),
  least: (item, number) => item.scores[mainMetric] >= number,
  most: (item, number) => item.scores[mainMetric] <= number,
};

const bars = document.querySelectorAll("#histogram rect");
let found = [];
const show = makeList(draw);

function update(control) {
  document.body.className = `boxes-${byId("boxes").value} ${byId("truth").checked ? "truth" : ""}`;
  byId("list").classList.toggle("tiles", byId("view").value === "grid");
  if (control?.id === "head") for (const card of document.querySelectorAll(".card")) card.dispatchEvent(new Event("redraw"));
  if (["boxes", "truth", "view", "head"].includes(control?.id)) return; // drawing again would lose pinned words
  const [key, direction] = (byId("order").value || "typical 1").split(" ");
  const active = Object.entries(filters).filter(([id]) => byId(id)?.value);
  const passed = data.images.filter((item) => active.every(([id, passes]) => passes(item, byId(id).value)));
  found = sorted(passed, values[key] ?? ((item) => item.scores[key] ?? null), Number(direction));
  for (const bar of bars) {
    bar.ariaPressed = bar.dataset.from === byId("least").value && bar.dataset.to === byId("most").value;
  }
  show(found);
  showCount(found.length, data.images.length);
}

// A second click on the same bar removes the filter.
function chooseBar(bar) {
  const isChosen = bar.ariaPressed === "true";
  byId("least").value = isChosen ? "" : bar.dataset.from;
  byId("most").value = isChosen ? "" : bar.dataset.to;
  changed();
}

for (const bar of bars) {
  bar.onclick = () => chooseBar(bar);
  bar.onkeydown = (event) => ["Enter", " "].includes(event.key) && chooseBar(bar);
}

// Fills the choice of layers and heads with those of the first image that has them.
function offerHeads() {
  const script = [...details.values()].find(({ textContent }) => textContent.includes('"layers":[{'));
  const layers = script ? JSON.parse(script.textContent).attention.layers : [];
  byId("head").length = 1; // of a saved page, that has them
  byId("head").hidden = layers.length * (layers[0]?.heads ?? 0) < 2;
  layers.forEach(({ heads }, layer) => {
    for (const one of [[layer], ...(heads > 1 ? range(heads).map((head) => [layer, head]) : [])]) {
      addText(byId("head"), "option", headName(one)).value = one.map((number) => number + 1).join(".");
    }
  });
}

const rows = () =>
  found.map(({ id, caption, references, scores }) => ({ id, caption, references, ...Object.fromEntries(data.metrics.map((name, i) => [name, scores[i]])) }));
byId("csv").onclick = () => download("captions.csv", "text/csv", asCsv(rows()));
byId("json").onclick = () => download("captions.json", "application/json", asJson(rows()));

// A page on the disk completes the command with its folder.
const [, root, below] = location.protocol === "file:" ? decodeURIComponent(location.pathname).match(/^(.+)(\/[^/]+\/[^/]+)\/[^/]*$/) ?? [] : [];
const quoted = (path) => (/[^\w./-]/.test(path) ? `'${path.replaceAll("'", "'\\''")}'` : path);
for (const command of root ? document.querySelectorAll("code") : []) {
  command.textContent = command.textContent.replace("-c config.yaml", () => `-c ${quoted(`${root}${below}/config.yaml`)} --artifacts ${quoted(root)}`);
}

document.addEventListener("click", ({ target }) => {
  if (target.matches(".copy")) copy(target.previousElementSibling, target);
});

byId("truth-label").hidden = ![...details.values()].some((script) => !script.textContent.includes('"truth":null'));
offerHeads();
const changed = keepInAddress(byId("tools"), update);
drawFirst();
update();
performance.mark("a2-ready");
