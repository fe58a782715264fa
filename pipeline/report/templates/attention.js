// The image of a card, and the attention to its regions or cells at each word of the caption.

const OVERLAY_WIDTH = 320; // pixels, as many as a thumbnail has
const DIMMED = 0.7; // opacity over what is not attended, if the peak is the largest of both kinds
const SPREAD = 1.5; // times even: below, nothing stands out
const PEAK = 4; // times even: if no kind has as much, both dim less, in proportion
const MAP_POINTS = 64; // to which a grid is interpolated
const KINDS = ["original α", "aligned αᵃ"];

const percent = (share) => `${Math.round(100 * share)} %`;
const range = (count) => [...Array(count).keys()];
const isEven = (row) => Math.max(...row) * row.length < SPREAD;
const topRegions = (row) => range(row.length).sort((a, b) => row[b] - row[a]).slice(0, 5);
const nameOf = (detail, index) => detail.names[index] || `region ${index + 1}`;

const sumOf = (row) => row.reduce((a, b) => a + b, 0);
const shares = (row) => row.map((value) => value / (sumOf(row) || 1));

// Returns the rows of 16-bit multiples of 1 / 16384 (image_card.py).
function unpack(text, width) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), values = new DataView(bytes.buffer);
  return range(bytes.length / 2 / width).map((row) => range(width).map((i) => values.getUint16(2 * (row * width + i), true) / 16384));
}

// Layer and head that the page shows, from 0; the mean over what is not chosen.
const chosenHead = () => (byId("head")?.value ?? "").split(".").filter(Boolean).map((number) => number - 1);
const headName = ([layer, head]) => `layer ${layer + 1}` + (head === undefined ? "" : `, head ${head + 1}`);

// Returns the attention of the chosen layer and head, a row for each word; the mean of an image without layers.
function attentionOf({ attention, regions }) {
  const [layer, head] = chosenHead(), count = attention.tokens.length;
  const source = attention.layers[layer] ?? { ...attention, heads: 1 };
  const heads = source.heads > 1 && head !== undefined ? [head] : range(source.heads);
  const mean = (rows) => rows && range(count).map((word) =>
    rows[0].map((_, i) => heads.reduce((sum, one) => sum + rows[one * count + word][i], 0) / heads.length));
  const at = (text) => mean(text && unpack(text, regions));
  const original = at(source.original);
  const values = attention.aligned ? [original, at(source.aligned) ?? original] : [original]; // of a layer without alignment
  return {
    from: layer === undefined ? "" : attention.layers[layer] ? ` (${headName([layer, head])})` : " (mean, the page has no layers of this image)",
    values,
    shares: values.map((rows) => rows.map(shares)),
    keep: at(source.keep),
    gate: mean(source.gate?.map((value) => [value])),
  };
}

// Dims what is not attended; an even share is as dark as none.
function dim(context, scale, { boxes, grid, width, height }, row, largest) {
  const even = 1 / row.length;
  // A row whose own peak is weaker dims less: on the scale of a strong one it would be nearly black.
  const depth = DIMMED * (Math.max(...row) / even - 1) / (Math.max(largest / even, Math.min(PEAK, row.length)) - 1);
  const light = row.map((share) => Math.max(0, (share - even) / (largest - even)));
  const clear = (box, seen) => {
    const [x1, y1, x2, y2] = box.map((value) => value * scale), area = [x1, y1, x2 - x1, y2 - y1];
    context.clearRect(...area);
    context.fillStyle = `rgb(0 0 0 / ${depth * (1 - seen)})`;
    context.fillRect(...area);
    return area;
  };
  clear([0, 0, width, height], 0);
  if (grid) return context.drawImage(smoothMap(grid, light, depth), ...clear(grid.area, 1));
  // Ascending, so that the largest share counts in each pixel.
  for (const index of range(row.length).filter((i) => light[i] > 0).sort((a, b) => light[a] - light[b])) {
    clear(boxes[index], light[index]);
  }
}

// Interpolates a line of values by cubics (Keys 1981, a = -1/2), the same in every browser.
const smooth = (line) =>
  range(MAP_POINTS).map((i) => {
    const x = ((i + 0.5) / MAP_POINTS) * line.length - 0.5, left = Math.floor(x), t = x - left;
    const [a, b, c, d] = [-1, 0, 1, 2].map((by) => line[Math.min(Math.max(left + by, 0), line.length - 1)]);
    return b + 0.5 * t * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)));
  });
const turned = (rows) => rows[0].map((_, i) => rows.map((row) => row[i]));

function smoothMap({ rows, columns }, light, depth) {
  const cells = range(rows).map((y) => light.slice(y * columns, (y + 1) * columns));
  const points = turned(turned(cells.map(smooth)).map(smooth)).flat();
  const map = document.createElement("canvas"), pixels = new ImageData(MAP_POINTS, MAP_POINTS);
  points.forEach((value, i) => (pixels.data[4 * i + 3] = 255 * depth * (1 - value)));
  map.width = map.height = MAP_POINTS;
  map.getContext("2d").putImageData(pixels, 0, 0);
  return map;
}

function addBox(svg, [x, y, x2, y2], attributes) {
  const rect = document.createElementNS(svg.namespaceURI, "rect");
  for (const [name, value] of Object.entries({ x, y, width: x2 - x, height: y2 - y, ...attributes })) rect.setAttribute(name, value);
  svg.append(rect);
}

// Adds text at the upper left corner of a box.
function addLabel(card, detail, [x1, y1, x2], text, kind) {
  const label = addText(card.querySelector(".labels"), "span", text, kind);
  const at = (x) => `${(100 * x) / detail.width}%`;
  if (x1 > detail.width / 2) label.style.right = at(detail.width - x2); // or it would be cut off at the edge
  else label.style.left = at(x1);
  label.style.top = `${(100 * y1) / detail.height}%`;
}

// Draws the boxes, small ones on top. The pointer and the arrow keys choose one, which `tell` gets as text.
function addRegions(card, detail, tell) {
  const svg = card.querySelector(".regions"), count = detail.boxes.length;
  const areas = detail.boxes.map(([x1, y1, x2, y2]) => (x2 - x1) * (y2 - y1));
  svg.setAttribute("viewBox", `0 0 ${detail.width} ${detail.height}`);
  for (const index of range(count).sort((a, b) => areas[b] - areas[a])) addBox(svg, detail.boxes[index], { "data-region": index });
  detail.truth?.boxes.forEach((box, i) => {
    addBox(svg, box, { class: "true" });
    addLabel(card, detail, box, detail.truth.names[i], "true");
  });
  if (!count) return;
  let current = null;

  function choose(index) {
    current = index;
    svg.querySelector(".current")?.classList.remove("current");
    if (index === null) return tell("");
    svg.querySelector(`[data-region="${index}"]`).classList.add("current");
    tell([`region ${index + 1} of ${count}`, detail.names[index], detail.scores?.[index].toFixed(2)].filter(Boolean).join(" · "));
  }

  svg.tabIndex = 0;
  svg.role = "group";
  svg.ariaLabel = `${count} regions; arrow keys step through them`;
  svg.onpointerover = ({ target }) => target.dataset.region && choose(Number(target.dataset.region));
  // On a touch screen, the pointer leaves after the tap; the region stays chosen.
  svg.onpointerleave = (event) => event.pointerType !== "touch" && choose(null);
  svg.addEventListener("focusout", () => choose(null));
  svg.onkeydown = (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by && event.key !== "Escape") return;
    event.preventDefault();
    choose(by ? ((current ?? (by > 0 ? -1 : 0)) + by + count) % count : null);
  };
}

// Makes a button of each word, which shows its attention while it is pointed at or focused; a click pins it, Escape releases it.
function addWords(heading, tokens, { show, pin }) {
  heading.textContent = "";
  const go = (position) => {
    const next = Math.min(Math.max(position, 0), words.length - 1);
    words.forEach((word, i) => (word.tabIndex = i === next ? 0 : -1)); // the Tab key stops once
    words[next].focus();
  };
  heading.dir = "auto";
  const words = tokens.map((text, position) => {
    const word = addText(heading, "button", text, "word");
    word.tabIndex = position ? -1 : 0;
    word.ariaPressed = false;
    word.onpointerenter = word.onfocus = () => show(position);
    word.onpointerleave = word.onblur = () => show();
    word.onclick = () => pin(position);
    word.onkeydown = (event) => {
      const by = heading.matches(":dir(rtl)") ? -1 : 1; // the right of the first word is none
      const to = { ArrowRight: position + by, ArrowLeft: position - by, Home: 0, End: words.length - 1 }[event.key];
      if (to === undefined && event.key !== "Escape") return;
      event.preventDefault();
      if (to === undefined) pin(null);
      else go(to);
    };
    word.after(" ");
    return word;
  });
  return words;
}

function fillTable({ tHead: { rows: [head] }, tBodies: [body] }, detail, found, position) {
  head.replaceChildren();
  body.replaceChildren();
  for (const name of ["region", ...(found.values.length > 1 ? [...KINDS, "mask m"] : [KINDS[0]])]) addText(head, "th", name).scope = "col";
  for (const index of topRegions(found.shares.at(-1)[position])) {
    const row = body.insertRow();
    addText(row, "th", [index + 1, detail.names[index]].filter(Boolean).join(" · ")).scope = "row";
    for (const rows of found.values) addText(row, "td", rows[position][index].toFixed(3));
    if (found.values.length > 1) addText(row, "td", found.keep ? found.keep[position][index].toFixed(3) : "–");
  }
}

// Tells the quarter of the image that gains most, known of the mean over layers and heads.
function tellPlace({ attention: { places } }, { from, shares }, position, kind) {
  if (from || !places) return []; // an older page has none
  if (isEven(shares[kind][position])) return ["looked everywhere alike"];
  const [place, share, even] = places[kind][position];
  return [share < 0.5 ? "looked at no single place" : `looked mostly at the ${place}; ${percent(share)} of its attention is on that quarter of the image, ${percent(even)} if it were even`];
}

// Returns the place of one kind of attention, and the numbers of both, as text.
function summarise(found, detail, position, kind) {
  const peak = (row) => {
    if (isEven(row)) return "spread evenly";
    const top = row.indexOf(Math.max(...row)), name = detail.grid ? "" : ` on ${nameOf(detail, top)}`;
    return `${percent(row[top])}${name}, ${(row[top] * row.length).toFixed(1)} × even`;
  };
  const kinds = found.shares.length > 1 ? KINDS : ["attention α"];
  const parts = [...tellPlace(detail, found, position, kind), ...kinds.map((name, i) => `${name} ${peak(found.shares[i][position])}`)];
  if (found.values.length > 1) parts.push(`aligned sums to ${sumOf(found.values[1][position]).toFixed(2)}`);
  if (found.gate) parts.push(`gate ${found.gate[position][0].toFixed(2)} (1 keeps the original)`);
  return `“${detail.attention.tokens[position]}”${found.from}: ${parts.join("; ")}`;
}

// Returns what the word's probability loses without the region that is attended most.
function certify({ tokens, certificates }, position) {
  const [all, ...without] = (certificates?.[position] ?? []).map(percent);
  const after = without.map((left, i) => `${left}${without.length > 1 ? ` (${KINDS[i]})` : ""}`).join(" or ");
  return all ? `“${tokens[position]}” has ${all}, and without the region that it attends to most ${after}.` : "";
}

// Fills the image of a card and makes words of its caption, of which the most telling one is shown first. detail: an ImageCard as JSON.
function addImage(card, detail, { src = detail.thumbnail, alt = "" } = {}) {
  const part = (name) => card.querySelector(name);
  const { attention } = detail, canvas = part("canvas"), context = canvas.getContext("2d");
  const isTold = Boolean(attention?.tokens.length && detail.regions);
  let found = isTold && attentionOf(detail), words = [], pinned = null, at = null, kind = 0, timer = 0;

  function draw(position) {
    at = position;
    words.forEach((word, i) => word.classList.toggle("shown", i === at));
    context.clearRect(0, 0, canvas.width, canvas.height);
    for (const old of card.querySelectorAll(".top")) old.matches("rect") ? old.classList.remove("top") : old.remove();
    if (at === null) return tell("");
    const rows = found.shares.map((all) => all[at]), row = rows[kind];
    if (!isEven(row)) dim(context, canvas.width / detail.width, detail, row, Math.max(...rows.flat()));
    if (!detail.grid) {
      for (const index of topRegions(row)) {
        part(`[data-region="${index}"]`).classList.add("top");
        addLabel(card, detail, detail.boxes[index], `${nameOf(detail, index)} · ${percent(row[index])}`, "top");
      }
      fillTable(part(".top-regions table"), detail, found, at);
    }
    tell("");
  }

  function tell(text) {
    const none = isTold ? "No word stands out: its attention is spread evenly. Point at a word." : "";
    part(".readout").textContent = text || (at === null ? none : summarise(found, detail, at, kind));
    part(".certificate").textContent = at === null ? "" : certify(attention, at);
  }

  const show = (position = pinned ?? attention.telling) => timer || draw(position);

  function pin(position) {
    stop();
    pinned = position === pinned ? null : position;
    words.forEach((word, i) => (word.ariaPressed = i === pinned));
    show();
  }

  function choose(next) {
    kind = next;
    [...part(".kinds").children].forEach((button, i) => (button.ariaPressed = i === kind));
    draw(at);
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    part(".play").textContent = "▶";
  }

  function play() {
    if (timer) return stop(), show();
    const next = () => (at === null || at + 1 < words.length ? draw((at ?? -1) + 1) : (stop(), show()));
    draw(0);
    timer = setInterval(next, 800); // ms a word
    part(".play").textContent = "⏸";
  }

  part(".image").hidden = false;
  part(".image").style = `--ratio: ${detail.width / detail.height}`;
  part(".missing").hidden = src;
  if (src) Object.assign(part("img"), { src, alt });
  else part("img").remove();
  [canvas.width, canvas.height] = [OVERLAY_WIDTH, Math.round((OVERLAY_WIDTH * detail.height) / detail.width)];
  addRegions(card, detail, tell);
  part(".play").hidden = part(".help").hidden = !isTold;
  part(".readout").hidden = !isTold && !detail.boxes.length;
  part(".top-regions").hidden = !isTold || detail.grid;
  if (!isTold) return;
  if (attention.aligned) {
    KINDS.forEach((name, i) => addText(part(".kinds"), "button", name).onclick = () => choose(i));
    part(".frame").onclick = () => choose(1 - kind);
    part(".frame").title = "Click: original or aligned attention";
    kind = 1;
  }
  words = addWords(part(".caption"), attention.tokens, { show, pin });
  part(".play").onclick = play;
  card.addEventListener("redraw", () => {
    found = attentionOf(detail);
    draw(at);
  });
  at = attention.telling;
  choose(kind);
}

// Returns the elements of a caption's words; a plain text gets them first.
function wordElements(heading) {
  if (!heading.children.length) {
    const words = heading.textContent.split(" ");
    heading.textContent = "";
    for (const word of words) addText(heading, "span", word).after(" ");
  }
  return [...heading.children];
}

// Lists captions: [caption, log-probability, its text].
function addBeams(card, name, beams) {
  const isSorted = beams.every(([, score], i) => !i || score <= beams[i - 1][1]);
  card.querySelector(".beams summary").textContent = `${name}, by ${isSorted ? "log-probability" : "agreement with each other"}`;
  for (const [caption, , text] of beams) addText(addText(card.querySelector(".beams ol"), "li", `${caption} `), "span", text);
}

document.addEventListener("click", ({ target }) => {
  if (!target.matches(".help")) return;
  byId("help").open = true;
  byId("help").firstElementChild.focus(); // which scrolls to it
});

const makeCard = () => byId("card").content.firstElementChild.cloneNode(true);

function addZoom(card) {
  const button = card.querySelector(".zoom");
  button.onclick = () => {
    button.ariaPressed = card.classList.toggle("large");
    button.textContent = card.matches(".large") ? "Reduce" : "Enlarge";
    card.scrollIntoView({ block: "nearest" });
  };
}
