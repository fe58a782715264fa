// Faults that axe would find: contrast below 4.5, controls without a name, images without a text,
// equal ids, focus that is not seen.
() => {
  const faults = [];
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  // What is not drawn yet has no colours.
  for (const card of document.querySelectorAll(".card, .pair")) card.style.contentVisibility = "visible";
  const seen = [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility({ visibilityProperty: true }));
  const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
  const over = ([r, g, b, a = 1], below) => [r, g, b].map((value, i) => value * a + below[i] * (1 - a));
  const light = (rgb) => {
    const [r, g, b] = rgb.map((value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => {
    const own = numbers(getComputedStyle(e).backgroundColor);
    // What is behind labels on an image is not known: the worst is white under white text.
    return own[3] === undefined ? own : over(own, e.parentElement ? behind(e.parentElement) : [255, 255, 255]);
  };
  for (const e of seen) {
    const name = `${e.tagName} .${e.className} ${e.textContent.slice(0, 30)}`;
    if ([...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) {
      const back = behind(e), [one, other] = [back, over(numbers(getComputedStyle(e).color), back)].map(light).sort((a, b) => b - a);
      if ((one + 0.05) / (other + 0.05) < 4.5) faults.push(`contrast ${((one + 0.05) / (other + 0.05)).toFixed(2)}: ${name}`);
    }
    if (e.matches("input, select, button, summary") && !(e.ariaLabel || e.labels?.[0]?.textContent.trim() || e.textContent.trim())) faults.push(`no name: ${name}`);
    if (e.matches("img:not([alt]), [role=button]:not([aria-label])")) faults.push(`no text: ${name}`);
  }
  // Last, because the focus of a word replaces rows of tables.
  for (const e of seen.filter((e) => e.tabIndex >= 0 && !e.matches("main"))) {
    e.focus({ focusVisible: true });
    if (document.activeElement === e && getComputedStyle(e).outlineStyle === "none") faults.push(`focus unseen: ${e.outerHTML}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) faults.push(`id twice: ${id}`);
  return faults;
}
