"use strict";

const byId = (id) => document.getElementById(id);
const FORMULA = /^[\s\x00-\x1f\ufeff\u200b]*[=+\-@＝＋－＠]|^[\t\r\n]/; // that a spreadsheet would run: data/files/csv_cell.py

function addText(parent, tag, text, kind) {
  const element = document.createElement(tag);
  element.textContent = text;
  if (kind) element.className = kind;
  parent.append(element);
  return element;
}

// Returns objects with equal names as CSV (RFC 4180).
function asCsv(rows) {
  const cell = (value) => {
    const text = [value ?? ""].flat().join(" | "), safe = typeof value !== "number" && FORMULA.test(text) ? `'${text}` : text;
    return `"${safe.replaceAll('"', '""')}"`;
  };
  return [Object.keys(rows[0] ?? {}), ...rows.map(Object.values)].map((line) => line.map(cell).join(",") + "\r\n").join("");
}

const asJson = (value) => JSON.stringify(value, null, 1);

// Copies the text of an element and selects it, for the keys where a page may not, as without https.
async function copy(element, button) {
  element.select ? element.select() : getSelection().selectAllChildren(element);
  try {
    await navigator.clipboard.writeText(element.value ?? element.textContent);
  } catch {
    if (!document.execCommand("copy")) return (button.textContent = "Press Ctrl+C");
  }
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

function download(name, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000); // after the browser has read it
}
