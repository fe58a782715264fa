// An image with its regions, and the attention to them at each token of the caption.

const SVG = "http://www.w3.org/2000/svg";
const GOLDEN_ANGLE = 137.508; // degrees between the hues of neighbours, which keeps any few of them distinct
const FIXED_POINT = 16384;
const TOP_REGIONS = 5; // regions in the table and with a label
const OVERLAY_WIDTH = 320; // pixels, as many as the thumbnail has
const DIMMED = 0.75; // opacity over what is not attended, if the peak is PEAK times even or more
const SPREAD = 1.5; // times even: below, no region stands out
const PEAK = 4; // times even: a weaker peak dims less, in proportion

// Returns a function from a row's number to that row of attention, from 16-bit multiples of 1 / FIXED_POINT.
function unpack(text, width) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const values = new DataView(bytes.buffer);
  return (row) =>
    Array.from({ length: width }, (_, i) => values.getUint16(2 * (row * width + i), true) / FIXED_POINT);
}

function shares(row) {
  const sum = row.reduce((a, b) => a + b, 0) || 1;
  return row.map((value) => value / sum);
}

const percent = (share) => `${Math.round(100 * share)} %`;
const nameOf = (detail, index) => detail.names[index] || `region ${index + 1}`;
const topRegions = (row) => [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, TOP_REGIONS);
const isSpread = (row) => Math.max(...row) * row.length < SPREAD;

function labelOf(detail, index) {
  const score = detail.scores ? detail.scores[index].toFixed(2) : "";
  return [`region ${index + 1} of ${detail.boxes.length}`, detail.names[index], score].filter(Boolean).join(" · ");
}

function addBox(svg, [x1, y1, x2, y2], attributes) {
  const rect = document.createElementNS(SVG, "rect");
  const position = { x: x1, y: y1, width: x2 - x1, height: y2 - y1, ...attributes };
  for (const [name, value] of Object.entries(position)) rect.setAttribute(name, value);
  svg.append(rect);
  return rect;
}

// Draws boxes over the image, the largest first: later ones are on top, and small ones must be
// reachable.
function drawRegions(svg, detail) {
  svg.setAttribute("viewBox", `0 0 ${detail.width} ${detail.height}`);
  const areas = detail.boxes.map(([x1, y1, x2, y2]) => (x2 - x1) * (y2 - y1));
  const order = [...areas.keys()].sort((a, b) => areas[b] - areas[a]);
  for (const index of order) {
    const rect = addBox(svg, detail.boxes[index], { "data-region": index });
    rect.style.setProperty("--hue", Math.round(GOLDEN_ANGLE * index) % 360);
  }
  for (const box of detail.truth?.boxes ?? []) addBox(svg, box, { class: "true" });
}

// Adds text at the upper left corner of a box, whatever the size of the image on the screen.
function addLabel(view, detail, [x1, y1, x2], text, kind) {
  const label = addText(view.querySelector(".labels"), "span", text, kind);
  const isRight = x1 > detail.width / 2; // or the text would be cut off at the edge
  if (isRight) label.style.right = `${100 - (100 * x2) / detail.width}%`;
  else label.style.left = `${(100 * x1) / detail.width}%`;
  label.style.top = `${(100 * y1) / detail.height}%`;
}

function drawView(detail, kind, alt) {
  const view = byId("view").content.firstElementChild.cloneNode(true);
  const frame = view.querySelector(".frame"), image = view.querySelector("img");
  frame.style.aspectRatio = `${detail.width} / ${detail.height}`;
  image.alt = alt;
  if (detail.thumbnail) image.src = detail.thumbnail;
  else image.remove();
  view.querySelector(".missing").hidden = Boolean(detail.thumbnail);
  view.querySelector(".kind").textContent = kind;
  view.dataset.kind = kind;
  const canvas = view.querySelector("canvas");
  [canvas.width, canvas.height] = [OVERLAY_WIDTH, Math.round((OVERLAY_WIDTH * detail.height) / detail.width)];
  drawRegions(view.querySelector("svg"), detail);
  detail.truth?.boxes.forEach((box, i) => addLabel(view, detail, box, detail.truth.names[i], "true"));
  return view;
}

// Labels the region under the pointer; arrow keys step through the regions.
function addRegionLabels(views, detail) {
  const count = detail.boxes.length;
  let current = null;

  function choose(index) {
    current = index;
    for (const view of views) {
      view.querySelector(".current")?.classList.remove("current");
      if (index !== null) view.querySelector(`[data-region="${index}"]`).classList.add("current");
    }
    views[0].querySelector(".region").textContent = index === null ? `${count} regions` : labelOf(detail, index);
  }

  function onKey(event) {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by && event.key !== "Escape") return;
    event.preventDefault();
    choose(by ? ((current ?? (by > 0 ? -1 : 0)) + by + count) % count : null);
  }

  const svgs = views.map((view) => view.querySelector("svg"));
  for (const svg of svgs) {
    svg.setAttribute("aria-hidden", "true");
    svg.addEventListener("pointerover", (event) => {
      if (event.target.dataset.region) choose(Number(event.target.dataset.region));
    });
    // On a touch screen, the pointer leaves after the tap; the region stays chosen.
    svg.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && choose(null));
  }
  // One of two equal images is enough for the keyboard. (A listener for focus alone would make an
  // svg element focusable.)
  svgs[0].tabIndex = 0;
  svgs[0].removeAttribute("aria-hidden");
  svgs[0].setAttribute("role", "group");
  svgs[0].setAttribute("aria-label", `${count} regions; arrow keys step through them`);
  svgs[0].addEventListener("focusout", () => choose(null));
  svgs[0].addEventListener("keydown", onKey);
  views[0].querySelector(".region").setAttribute("aria-live", "polite");
  choose(null);
}

// Layer and head that the page shows, from 0; without a head all of the layer's, without a layer the mean.
const chosenHead = () => byId("head").value.split(".").filter(Boolean).map((number) => number - 1);
const headName = ([layer, head]) => `layer ${layer + 1}` + (head === undefined ? "" : `, head ${head + 1}`);

// Fills the choice of layers and heads with those of the first image that has them.
function offerHeads() {
  const script = [...details.values()].find(({ textContent }) => textContent.includes('"layers":[{'));
  const layers = script ? JSON.parse(script.textContent).attention.layers : [];
  byId("head-label").hidden = layers.length * (layers[0]?.heads ?? 0) < 2;
  layers.forEach(({ heads }, layer) => {
    const all = heads > 1 ? [...Array(heads).keys()].map((head) => [layer, head]) : [];
    for (const one of [[layer], ...all]) {
      addText(byId("head"), "option", headName(one)).value = one.map((number) => number + 1).join(".");
    }
  });
}

// Returns the attention of the chosen layer and head at a token, as values and as shares of 1;
// without a position the mean over all tokens. Few images have layers: the others show the mean.
function attentionAt(position, { attention, boxes }, isAligned) {
  const { tokens } = attention;
  const [layer, head] = chosenHead();
  const source = attention.layers[layer] ?? { ...attention, heads: 1 };
  const heads = source.heads > 1 && head !== undefined ? [head] : [...Array(source.heads).keys()];
  const positions = position === null ? [...tokens.keys()] : [position];
  const rows = heads.flatMap((one) => positions.map((token) => one * tokens.length + token));
  const mean = (found) => found[0].map((_, i) => found.reduce((sum, row) => sum + row[i], 0) / found.length);
  const at = (text) => text && mean(rows.map(unpack(text, boxes.length)));
  const original = at(source.original);
  // A layer without alignment uses the original.
  const values = isAligned ? [original, at(source.aligned) ?? original] : [original];
  return {
    token: position === null ? "" : tokens[position],
    from: layer === undefined ? "" : attention.layers[layer] ? headName([layer, head]) : "mean, the page has no layers of this image",
    values,
    shares: values.map(shares),
    keep: at(source.keep),
    gate: position === null || !source.gate ? null : mean(rows.map((row) => [source.gate[row]]))[0],
  };
}

// Dims what is not attended: one layer, in each pixel the region with the largest share of those that
// cover it. An even share is as dark as none.
function drawOverlay(view, detail, row, largest) {
  const canvas = view.querySelector("canvas"), context = canvas.getContext("2d");
  const scale = canvas.width / detail.width, even = 1 / row.length;
  const depth = DIMMED * Math.min(1, (largest / even - 1) / (Math.min(PEAK, row.length) - 1));
  const light = row.map((share) => Math.max(0, (share - even) / (largest - even)));
  const paint = ([x1, y1, x2, y2], seen) => {
    const area = [x1 * scale, y1 * scale, (x2 - x1) * scale, (y2 - y1) * scale];
    context.clearRect(...area);
    context.fillStyle = `rgb(0 0 0 / ${depth * (1 - seen)})`;
    context.fillRect(...area);
  };
  context.clearRect(0, 0, canvas.width, canvas.height);
  if (isSpread(row)) return;
  paint([0, 0, detail.width, detail.height], 0);
  // Ascending, so that the largest share is the last word in each pixel.
  const order = [...row.keys()].filter((i) => light[i] > 0).sort((a, b) => light[a] - light[b]);
  for (const index of order) paint(detail.boxes[index], light[index]);
}

function showAttention(view, detail, row, largest) {
  drawOverlay(view, detail, row, largest);
  hideLabels(view);
  for (const index of topRegions(row)) {
    view.querySelector(`[data-region="${index}"]`).classList.add("top");
    addLabel(view, detail, detail.boxes[index], `${nameOf(detail, index)} · ${percent(row[index])}`, "top");
  }
  view.classList.add("attending");
  view.querySelector(".kind").textContent = `${view.dataset.kind} · ${peakOf(row)}`;
}

function hideLabels(view) {
  for (const label of view.querySelectorAll("span.top")) label.remove();
  for (const rect of view.querySelectorAll("rect.top")) rect.classList.remove("top");
}

function hideAttention(view) {
  view.classList.remove("attending");
  hideLabels(view);
  const canvas = view.querySelector("canvas");
  canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
  view.querySelector(".kind").textContent = view.dataset.kind;
}

// The largest share and how many times an even one it is.
function peakOf(row) {
  const top = Math.max(...row);
  return isSpread(row) ? "spread evenly" : `${percent(top)}, ${(top * row.length).toFixed(1)} × even`;
}

function fillTable(table, detail, found) {
  const rows = topRegions(found.shares.at(-1)).map((index) => {
    const row = document.createElement("tr");
    addText(row, "th", [index + 1, detail.names[index]].filter(Boolean).join(" · ")).scope = "row";
    for (const values of found.values) addText(row, "td", values[index].toFixed(3));
    if (found.values.length > 1) addText(row, "td", found.keep ? found.keep[index].toFixed(3) : "–");
    return row;
  });
  table.tBodies[0].replaceChildren(...rows);
}

// Returns the region with the largest attention, the gate, and the sum of the aligned row as text.
function summarise(found, detail) {
  const at = (row) => {
    if (isSpread(row)) return "spread evenly";
    const top = row.indexOf(Math.max(...row));
    const name = detail.names[top] ? ` (${detail.names[top]})` : "";
    return `${percent(row[top])} on region ${top + 1}${name}`;
  };
  const parts = [`“${found.token}”${found.from && ` (${found.from})`}: ${at(found.shares[0])}`];
  if (found.shares.length > 1) {
    const sum = found.values[1].reduce((a, b) => a + b, 0);
    parts.push(`aligned ${at(found.shares[1])}`, `Σαᵃ ${sum.toFixed(2)}`);
  }
  if (found.gate !== null) parts.push(`gate g ${found.gate.toFixed(2)}`);
  return parts.join("; ");
}

// Makes a button of each token, which shows its attention while it is pointed at or focused. The Tab
// key stops at one of them, arrow keys step to the others; a click pins a token, Escape releases it.
function addTokens(card, views, detail) {
  const attended = card.querySelector(".attended"), table = attended.querySelector("table");
  const readout = attended.querySelector(".readout");
  const heading = card.querySelector(".caption");
  const isAligned = views.length > 1;
  let pinned = null;

  function show(position) {
    tokens.forEach((token, i) => token.classList.toggle("shown", i === position));
    const found = attentionAt(position, detail, isAligned);
    fillTable(table, detail, found);
    if (position === null) {
      readout.textContent = `Mean over ${tokens.length} tokens; point at one, or step through them with the arrow keys`;
      views.forEach(hideAttention);
      return;
    }
    const largest = Math.max(...found.shares.flat());
    views.forEach((view, i) => showAttention(view, detail, found.shares[i], largest));
    readout.textContent = summarise(found, detail);
  }

  function pin(position) {
    pinned = position;
    tokens.forEach((token, i) => token.setAttribute("aria-pressed", i === position));
    show(position);
  }

  function go(position) {
    const next = Math.min(Math.max(position, 0), tokens.length - 1);
    tokens.forEach((token, i) => (token.tabIndex = i === next ? 0 : -1));
    tokens[next].focus();
  }

  function onKey(event, position) {
    const to = { ArrowRight: position + 1, ArrowLeft: position - 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (to === undefined && event.key !== "Escape") return;
    event.preventDefault();
    if (to === undefined) pin(null);
    else go(to);
  }

  heading.textContent = "";
  const tokens = detail.attention.tokens.map((text, position) => {
    const token = addText(heading, "button", text, "token");
    token.type = "button";
    token.tabIndex = position === 0 ? 0 : -1;
    token.setAttribute("aria-pressed", "false");
    token.addEventListener("pointerenter", () => show(position));
    token.addEventListener("pointerleave", () => show(pinned));
    token.addEventListener("focus", () => show(position));
    token.addEventListener("blur", () => show(pinned));
    token.addEventListener("click", () => pin(pinned === position ? null : position));
    token.addEventListener("keydown", (event) => onKey(event, position));
    heading.append(" ");
    return token;
  });
  for (const cell of table.querySelectorAll(".aligned")) cell.hidden = !isAligned;
  attended.hidden = false;
  card.addEventListener("head", () => show(pinned));
  show(null);
}

// Adds the views of a card's image.
function addImage(card, detail, alt) {
  const isAligned = Boolean(detail.attention?.aligned);
  const titles = detail.attention ? (isAligned ? ["original α", "aligned αᵃ"] : ["attention α"]) : [""];
  const views = titles.map((kind, position) => drawView(detail, kind, position ? "" : alt));
  card.querySelector(".views").append(...views);
  card.querySelector(".image").hidden = false;
  card.classList.add(views.length > 1 ? "two" : "one");
  if (detail.boxes.length) addRegionLabels(views, detail);
  if (detail.attention?.tokens.length && detail.boxes.length) addTokens(card, views, detail);
}
