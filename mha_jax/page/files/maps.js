// Maps of weights on canvases: small ones with all heads, a large one that zooms.
const Maps = (() => {
  const FONT = "12px system-ui, sans-serif";
  const MARGIN = 72; // pixels for the labels, at most
  const LEAST = 13; // pixels between labels

  function ink(canvas, name) {
    return getComputedStyle(canvas).getPropertyValue(name).trim();
  }

  // A canvas of so many pixels of the page, sharp on any screen.
  function prepared(canvas, side) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = canvas.height = Math.round(side * ratio);
    canvas.style.width = `${side}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = FONT;
    context.direction = "ltr";
    return context;
  }

  const images = new WeakMap(); // weights -> {bright: their image}

  // A whole map, one pixel a cell; `bright`: the largest weight of each row has the brightest colour.
  function image(weights, length, colours, bright) {
    const kept = images.get(weights) || {};
    if (kept[bright]) return kept[bright];
    const made = document.createElement("canvas");
    made.width = made.height = length;
    const context = made.getContext("2d");
    const pixels = context.createImageData(length, length);
    for (let t = 0; t < length; t++) {
      const row = weights.subarray(t * length, (t + 1) * length);
      const most = bright ? row.reduce((a, b) => Math.max(a, b), 0) || 1 : 1;
      for (let s = 0; s < length; s++) {
        const [r, g, b] = colours[Math.round(255 * Math.min(Math.max(row[s] / most, 0), 1))];
        const place = 4 * (t * length + s);
        pixels.data[place] = r;
        pixels.data[place + 1] = g;
        pixels.data[place + 2] = b;
        pixels.data[place + 3] = 255;
      }
    }
    context.putImageData(pixels, 0, 0);
    images.set(weights, { ...kept, [bright]: made });
    return made;
  }

  function shortened(context, text, room) {
    if (context.measureText(text).width <= room) return text;
    let kept = Array.from(text);
    while (kept.length > 1 && context.measureText(`${kept.join("")}…`).width > room) kept = kept.slice(0, -1);
    return `${kept.join("")}…`;
  }

  // Draws a window of a map and marks what is `selected`: {t, s, bright}. Returns where cells are,
  // in pixels of the page.
  function draw(canvas, weights, tokens, colours, side, window_, selected) {
    const { t0, s0, cells } = window_;
    const context = prepared(canvas, side);
    const widest = [...new Set(tokens)].reduce((most, token) => Math.max(most, context.measureText(token).width), 0);
    const margin = Math.min(MARGIN, Math.ceil(widest) + 10);
    const cell = (side - margin) / cells;
    context.clearRect(0, 0, side, side);
    context.imageSmoothingEnabled = false;
    const whole = image(weights, tokens.length, colours, selected.bright);
    context.drawImage(whole, s0, t0, cells, cells, margin, margin, side - margin, side - margin);
    labels(context, canvas, tokens, window_, margin, cell);
    context.lineWidth = 2;
    context.strokeStyle = ink(canvas, "--mark");
    const y = margin + (selected.t - t0) * cell;
    if (selected.t >= t0 && selected.t < t0 + cells) {
      context.strokeRect(margin + 1, y, side - margin - 2, Math.max(cell, 2));
      if (selected.s >= s0 && selected.s < s0 + cells) {
        context.strokeRect(margin + (selected.s - s0) * cell, y, Math.max(cell, 2), Math.max(cell, 2));
      }
    }
    return { margin, cell };
  }

  function labels(context, canvas, tokens, { t0, s0, cells }, margin, cell) {
    const every = Math.max(1, Math.ceil(LEAST / cell));
    context.fillStyle = ink(canvas, "--ink");
    context.textBaseline = "middle";
    for (let i = 0; i < cells; i += every) {
      const at = margin + (i + 0.5) * cell;
      context.textAlign = "right";
      context.fillText(shortened(context, tokens[t0 + i], margin - 8), margin - 5, at);
      context.save();
      context.translate(at, margin - 5);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(shortened(context, tokens[s0 + i], margin - 8), 0, 0);
      context.restore();
    }
  }

  // The cell at a place of the canvas; null beside the cells.
  function cellAt(event, canvas, drawn, window_) {
    const box = canvas.getBoundingClientRect();
    const scale = parseFloat(canvas.style.width) / box.width;
    const s = Math.floor(((event.clientX - box.left) * scale - drawn.margin) / drawn.cell);
    const t = Math.floor(((event.clientY - box.top) * scale - drawn.margin) / drawn.cell);
    if (Math.min(s, t) < 0 || Math.max(s, t) >= window_.cells) return null;
    return { t: window_.t0 + t, s: window_.s0 + s };
  }

  // A window with so many cells around a selected one.
  function around(selected, cells, length) {
    const first = (x) => Math.min(Math.max(x - Math.floor(cells / 2), 0), length - cells);
    return { t0: first(selected.t), s0: first(selected.s), cells };
  }

  return { draw, cellAt, around };
})();
