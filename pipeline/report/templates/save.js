// The texts of images in a ZIP file.

const encoder = new TextEncoder();

// Names the texts of images as every file system takes it; equal names, also but for case, are numbered.
function textNames(images) {
  const used = new Set();
  return images.map((image) => {
    let stem = image.replace(/\.\w+$/, "").replace(/^\.|[\\/:*?"<>|\p{Cc}\p{Cs}\u202a-\u202e\u2066-\u2069]|[. ]+$/gu, "_");
    stem = stem.replace(/^(con|prn|aux|nul|com\d|lpt\d)(?=\.|$)/i, "_$&") || "image";
    while (encoder.encode(stem).length > 200) stem = [...stem].slice(0, -1).join(""); // of 255 bytes
    let name = stem;
    const key = () => name.normalize().toLowerCase();
    for (let number = 2; used.has(key()); number++) name = `${stem}-${number}`;
    used.add(key());
    return `${name}.txt`;
  });
}

function crc32(bytes) {
  let crc = -1;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 && 0xedb88320);
  }
  return ~crc;
}

// Returns a ZIP file (APPNOTE.TXT 4.3) of the texts of images: not compressed, names in UTF-8, of 1 January 1980.
function zip(lines) {
  const files = [], directory = [], long = (value) => [value, value >>> 16];
  const fields = (...values) => Uint16Array.of(0x4b50, ...values); // little-endian on every machine with a browser
  let offset = 0;
  for (const [i, name] of textNames(lines.map(({ image }) => image)).entries()) {
    const path = encoder.encode(name), content = encoder.encode(`${lines[i].caption}\n`), size = long(content.length);
    const header = [20, 0x800, 0, 0, 33, ...long(crc32(content)), ...size, ...size, path.length, 0];
    files.push(fields(0x403, ...header), path, content);
    directory.push(fields(0x201, 20, ...header, 0, 0, 0, 0, 0, ...long(offset)), path);
    offset += 30 + path.length + content.length;
  }
  const count = lines.length, end = [...long(new Blob(directory).size), ...long(offset)];
  return new Blob([...files, ...directory, fields(0x605, 0, 0, count, count, ...end, 0)]);
}
