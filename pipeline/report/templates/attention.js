// An image with its regions, and for each word of the caption where the captioner looked.

const SVG = "http://www.w3.org/2000/svg";
const GOLDEN_ANGLE = 137.508; // degrees between the hues of neighbours: any few of them stay apart
const FIXED_POINT = 16384;
const IN_TABLE = 5;

// Rows of attention, one per word, out of 16-bit multiples of 1 / FIXED_POINT.
function unpack(text, width) {
  if (text === null) return null;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const values = new DataView(bytes.buffer);
  return (row) =>
    Array.from({ length: width }, (_, i) => values.getUint16(2 * (row * width + i), true) / FIXED_POINT);
}

function shares(row) {
  const sum = row.reduce((a, b) => a + b, 0) || 1;
  return row.map((value) => value / sum);
}

function labelOf(detail, index) {
  const score = detail.scores ? detail.scores[index].toFixed(2) : "";
  return [`region ${index + 1} of ${detail.boxes.length}`, detail.names[index], score].filter(Boolean).join(" · ");
}

// Boxes over the image, the largest first: what is drawn later lies on top, and small ones must
// be reachable.
function drawRegions(svg, detail) {
  svg.setAttribute("viewBox", `0 0 ${detail.width} ${detail.height}`);
  const areas = detail.boxes.map(([x1, y1, x2, y2]) => (x2 - x1) * (y2 - y1));
  const order = [...areas.keys()].sort((a, b) => areas[b] - areas[a]);
  for (const index of order) {
    const [x1, y1, x2, y2] = detail.boxes[index];
    const rect = document.createElementNS(SVG, "rect");
    const place = { x: x1, y: y1, width: x2 - x1, height: y2 - y1, "data-region": index };
    for (const [name, value] of Object.entries(place)) rect.setAttribute(name, value);
    rect.style.setProperty("--hue", Math.round(GOLDEN_ANGLE * index) % 360);
    svg.append(rect);
  }
}

function drawLook(detail, kind, alt) {
  const look = byId("look").content.firstElementChild.cloneNode(true);
  const frame = look.querySelector(".frame"), image = look.querySelector("img");
  frame.style.aspectRatio = `${detail.width} / ${detail.height}`;
  image.alt = alt;
  if (detail.thumbnail) image.src = detail.thumbnail;
  else image.remove();
  look.querySelector(".absent").hidden = Boolean(detail.thumbnail);
  look.querySelector(".kind").textContent = kind;
  look.dataset.kind = kind;
  drawRegions(look.querySelector("svg"), detail);
  return look;
}

// Arrow keys step through the regions of an image, pointing names one.
function nameRegions(looks, detail) {
  const count = detail.boxes.length;
  let current = null;

  function choose(index) {
    current = index;
    for (const look of looks) {
      look.querySelector(".current")?.classList.remove("current");
      if (index !== null) look.querySelector(`[data-region="${index}"]`).classList.add("current");
    }
    looks[0].querySelector(".region").textContent = index === null ? `${count} regions` : labelOf(detail, index);
  }

  function onKey(event) {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by && event.key !== "Escape") return;
    event.preventDefault();
    choose(by ? ((current ?? (by > 0 ? -1 : 0)) + by + count) % count : null);
  }

  const svgs = looks.map((look) => look.querySelector("svg"));
  for (const svg of svgs) {
    svg.setAttribute("aria-hidden", "true");
    svg.addEventListener("pointerover", (event) => {
      if (event.target !== svg) choose(Number(event.target.dataset.region));
    });
    // A finger leaves with the tap; what it chose stays.
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
  looks[0].querySelector(".region").setAttribute("aria-live", "polite");
  choose(null);
}

// What the attention is at one word: shares of both kinds, and the values that they came from.
function wordReader({ attention, boxes }) {
  const [original, aligned, keep] = ["original", "aligned", "keep"].map((name) =>
    unpack(attention[name], boxes.length),
  );
  return (place) => {
    const values = [original(place), aligned?.(place)].filter(Boolean);
    return {
      word: attention.words[place],
      values,
      shares: values.map(shares),
      keep: keep?.(place),
      gate: attention.gate?.[place],
    };
  };
}

function drawOverlay(look, row, strongest) {
  const best = row.indexOf(Math.max(...row));
  for (const rect of look.querySelectorAll("rect")) {
    const index = Number(rect.dataset.region);
    rect.style.setProperty("--share", (row[index] / strongest).toFixed(3));
    rect.classList.toggle("best", index === best);
  }
  look.classList.add("looking");
  look.querySelector(".kind").textContent = `${look.dataset.kind} · ${Math.round(100 * row[best])} %`;
}

function fillTable(table, detail, found) {
  const decisive = found.shares.at(-1);
  const order = [...decisive.keys()].sort((a, b) => decisive[b] - decisive[a]).slice(0, IN_TABLE);
  const rows = order.map((index) => {
    const row = document.createElement("tr");
    addText(row, "th", [index + 1, detail.names[index]].filter(Boolean).join(" · ")).scope = "row";
    for (const values of found.values) addText(row, "td", values[index].toFixed(3));
    if (found.keep) addText(row, "td", found.keep[index].toFixed(3));
    return row;
  });
  table.tBodies[0].replaceChildren(...rows);
  table.hidden = false;
}

// In words: where the most attention lies, what the gate let through, what the row sums to.
function describe(found, detail) {
  const at = (row) => {
    const best = row.indexOf(Math.max(...row));
    const name = detail.names[best] ? ` (${detail.names[best]})` : "";
    return `${Math.round(100 * row[best])} % on region ${best + 1}${name}`;
  };
  const parts = [`“${found.word}”: ${at(found.shares[0])}`];
  if (found.shares.length > 1) {
    const sum = found.values[1].reduce((a, b) => a + b, 0);
    parts.push(`aligned ${at(found.shares[1])}`, `Σαᵃ ${sum.toFixed(2)}`);
  }
  if (found.gate !== undefined && found.gate !== null) parts.push(`gate g ${found.gate.toFixed(2)}`);
  return parts.join("; ");
}

// Words that show the attention while they are pointed at or have the focus. One of them takes part
// in the order of tabs, arrow keys step to the others; a click keeps a word, Escape lets it go.
function makeWords(card, looks, detail) {
  const attended = card.querySelector(".attended"), table = attended.querySelector("table");
  const readout = attended.querySelector(".readout");
  const heading = card.querySelector(".caption");
  const read = wordReader(detail);
  const isAligned = looks.length > 1;
  let kept = null;

  function show(place) {
    words.forEach((word, i) => word.classList.toggle("shown", i === place));
    table.hidden = place === null;
    readout.textContent = `${words.length} words; point at one, or step through them with the arrow keys`;
    if (place === null) {
      for (const look of looks) {
        look.classList.remove("looking");
        look.querySelector(".kind").textContent = look.dataset.kind;
      }
      return;
    }
    const found = read(place);
    const strongest = Math.max(...found.shares.flat());
    looks.forEach((look, kind) => drawOverlay(look, found.shares[kind], strongest));
    readout.textContent = describe(found, detail);
    fillTable(table, detail, found);
  }

  function keep(place) {
    kept = place;
    words.forEach((word, i) => word.setAttribute("aria-pressed", i === place));
    show(place);
  }

  function go(place) {
    const next = Math.min(Math.max(place, 0), words.length - 1);
    words.forEach((word, i) => (word.tabIndex = i === next ? 0 : -1));
    words[next].focus();
  }

  function onKey(event, place) {
    const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: words.length - 1 }[event.key];
    if (to === undefined && event.key !== "Escape") return;
    event.preventDefault();
    if (to === undefined) keep(null);
    else go(to);
  }

  heading.textContent = "";
  const words = detail.attention.words.map((text, place) => {
    const word = addText(heading, "button", text, "word");
    word.type = "button";
    word.tabIndex = place === 0 ? 0 : -1;
    word.setAttribute("aria-pressed", "false");
    word.addEventListener("pointerenter", () => show(place));
    word.addEventListener("pointerleave", () => show(kept));
    word.addEventListener("focus", () => show(place));
    word.addEventListener("blur", () => show(kept));
    word.addEventListener("click", () => keep(kept === place ? null : place));
    word.addEventListener("keydown", (event) => onKey(event, place));
    heading.append(" ");
    return word;
  });
  for (const cell of table.querySelectorAll(".aligned")) cell.hidden = !isAligned;
  attended.hidden = false;
  show(null);
}

// Fills in what is drawn of a card's image.
function addImage(card, detail, alt) {
  const isAligned = Boolean(detail.attention?.aligned);
  const kinds = detail.attention ? (isAligned ? ["original α", "aligned αᵃ"] : ["attention α"]) : [""];
  const looks = kinds.map((kind, place) => drawLook(detail, kind, place ? "" : alt));
  card.querySelector(".looks").append(...looks);
  card.querySelector(".image").hidden = false;
  card.classList.add(looks.length > 1 ? "two" : "one");
  if (detail.boxes.length) nameRegions(looks, detail);
  if (detail.attention?.words.length) makeWords(card, looks, detail);
}
