// The chosen map, large: zoom, pan, hover, and the arrow keys from cell to cell.
const Large = (() => {
  const { el, fill } = Dom;
  const { now } = State;
  const SIDE = 640; // pixels, where there is room
  const FEWEST = 4; // cells across, at the largest zoom
  const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  let canvas = null;
  let drag = null;

  // `onpick(t, s)`, `onzoom()`: the window has changed, `onbright()`: the colours of all maps have.
  function build(place, onpick, onzoom, onbright) {
    canvas = el("canvas", {
      id: "large", tabindex: "0", role: "application", "aria-roledescription": "attention map",
      onkeydown: (event) => key(event, onpick, onzoom),
      onpointerdown: (event) => { drag = { x: event.clientX, y: event.clientY, ...now.window, moved: false }; },
      onpointermove: (event) => move(event, onzoom),
      onpointerup: (event) => {
        const clicked = drag && !drag.moved && at(event);
        drag = null;
        if (clicked) onpick(clicked.t, clicked.s);
      },
      onpointerleave: () => { drag = null; },
    });
    const button = (id, text, label, by) => el("button", {
      type: "button", id, "aria-label": label, onclick: () => { zoom(by); onzoom(); },
    }, text);
    const bright = el("label", { for: "bright", class: "option" }, el("input", {
      type: "checkbox", id: "bright", checked: now.bright,
      onchange: (event) => { now.bright = event.target.checked; onbright(); },
    }), "each row up to its largest weight");
    fill(place, el("h3", { id: "large-title" }), el("div", { class: "options" },
      button("zoom-in", "+", "zoom in", 0.5), button("zoom-out", "−", "zoom out", 2), legend(), bright),
    canvas, el("p", { id: "cell" }));
  }

  function legend() {
    const bar = el("canvas", { id: "legend", width: "128", height: "12", role: "img", "aria-label": "colours of weights, dark to bright" });
    return el("span", { class: "legend" }, "0 ", bar, el("span", { id: "legend-end" }, "1"));
  }

  function draw(colours) {
    const tokens = State.tokens();
    const room = canvas.parentElement.clientWidth || SIDE;
    const side = Math.max(200, Math.min(SIDE, room));
    canvas.drawn = Maps.draw(canvas, State.mapsWith(now.switches)[now.unit], tokens, colours, side, now.window, now);
    document.getElementById("large-title").textContent = `${State.unitName(now.unit)}, queries down, keys across`;
    canvas.setAttribute("aria-label", `${State.unitName(now.unit)}. ${cellText(now.t, now.s)}. Arrow keys move, plus and minus zoom.`);
    document.getElementById("cell").textContent = cellText(now.t, now.s);
    paintLegend(colours);
  }

  function paintLegend(colours) {
    document.getElementById("legend-end").textContent = now.bright ? "largest" : "1";
    const bar = document.getElementById("legend");
    const context = bar.getContext("2d");
    for (let x = 0; x < bar.width; x++) {
      context.fillStyle = `rgb(${colours[Math.round((255 * x) / (bar.width - 1))].join(",")})`;
      context.fillRect(x, 0, 1, bar.height);
    }
  }

  // A cell in words and numbers.
  function cellText(t, s) {
    const look = State.look();
    // Isolated: a token that is written from the right must not turn what follows.
    const token = (i) => `“\u2068${look.tokens[i]}\u2069”`;
    const start = `query ${t} ${token(t)}, key ${s} ${token(s)}: `;
    const number = (x) => Arithmetic.fixed(x, look.digits);
    if (look.layer.why) return `${start}weight ${number(look.maps[look.unit][t * look.layer.t + s])}`;
    const one = Arithmetic.row(look.layer, look.switches, look.heads, t).keys[s];
    return one.visible ? `${start}weight ${number(one.weight)}, score ${number(one.score)}` : `${start}hidden by the mask`;
  }

  function at(event) {
    return Maps.cellAt(event, canvas, canvas.drawn, now.window);
  }

  function move(event, onzoom) {
    if (!drag) {
      const cell = at(event);
      if (cell) document.getElementById("cell").textContent = cellText(cell.t, cell.s);
      return;
    }
    const by = (from, to) => Math.round((from - to) / canvas.drawn.cell);
    const [dt, ds] = [by(drag.y, event.clientY), by(drag.x, event.clientX)];
    if (!dt && !ds) return;
    drag.moved = true;
    place(drag.t0 + dt, drag.s0 + ds, now.window.cells);
    onzoom();
  }

  function key(event, onpick, onzoom) {
    const length = State.model().tokens.length;
    const step = MOVES[event.key];
    if (step) {
      event.preventDefault();
      const inside = (x) => Math.min(Math.max(x, 0), length - 1);
      onpick(inside(now.t + step[0]), inside(now.s + step[1]));
      document.getElementById("said").textContent = cellText(now.t, now.s);
    } else if (event.key === "+" || event.key === "-") {
      event.preventDefault();
      zoom(event.key === "+" ? 0.5 : 2);
      onzoom();
    }
  }

  function zoom(by) {
    const length = State.model().tokens.length;
    const cells = Math.min(length, Math.max(Math.min(FEWEST, length), Math.ceil(now.window.cells * by)));
    now.window = Maps.around(now, cells, length);
  }

  function place(t0, s0, cells) {
    const last = State.model().tokens.length - cells;
    const inside = (x) => Math.min(Math.max(x, 0), last);
    now.window = { t0: inside(t0), s0: inside(s0), cells };
  }

  // Moves the window no further than the chosen cell needs.
  function follow() {
    const { t0, s0, cells } = now.window;
    const near = (first, x) => Math.min(Math.max(first, x - cells + 1), x);
    place(near(t0, now.t), near(s0, now.s), cells);
  }

  return { build, draw, follow };
})();
