// A card for each map of the layer: its head, its switch, its kv head, its badge.
const Cards = (() => {
  const { el, fill } = Dom;
  const { now } = State;
  const SIDE = 224; // pixels of a map

  // `on`: {pick(unit, t, s), unit(unit), off(head, is_off), guess()}.
  function draw(place, colours, on) {
    const units = Arithmetic.units(State.layer(), now.switches);
    const order = now.exercise ? now.exercise.order : units.map((_, unit) => unit);
    fill(place, ...order.map((unit) => card(unit, units[unit], on)));
    paint(place, colours);
  }

  // The maps alone: a click changes no more of a card.
  function paint(place, colours) {
    const maps = State.mapsWith(now.switches);
    const tokens = State.tokens();
    const window_ = { t0: 0, s0: 0, cells: tokens.length };
    for (const canvas of place.querySelectorAll("canvas")) {
      const unit = Number(canvas.dataset.unit);
      canvas.drawn = Maps.draw(canvas, maps[unit], tokens, colours, SIDE, window_, now);
      canvas.closest(".card").classList.toggle("chosen", unit === now.unit);
      const button = document.getElementById(`unit-${unit}`);
      if (button) button.setAttribute("aria-pressed", String(unit === now.unit));
    }
  }

  function card(unit, heads, on) {
    const layer = State.layer();
    const name = State.unitName(unit);
    const canvas = el("canvas", {
      role: "img", "aria-label": `${name}: attention map, queries down, keys across`, "data-unit": String(unit),
      onclick: (event) => {
        const window_ = { t0: 0, s0: 0, cells: layer.t };
        const cell = Maps.cellAt(event, canvas, canvas.drawn, window_);
        if (cell) on.pick(unit, cell.t, cell.s);
      },
    });
    const title = el("button", { type: "button", id: `unit-${unit}`, class: "unit", onclick: () => on.unit(unit) }, name);
    const hides = now.exercise && !now.exercise.over; // the number of a kv head tells that of the head
    const top = el("div", { class: "top" }, title, ...(hides ? [] : heads.map((head) => chip(layer, head))));
    const made = el("div", { class: "card" }, top, canvas, ...told(unit, on));
    if (!now.switches.merged && !layer.why && !layer.output_why) made.append(onOff(unit, name, on));
    if (!hides) made.style.setProperty("--kv", Colour.kv(layer.kv[heads[0]]));
    return made;
  }

  // Which kv head the head reads, in a colour and in words.
  function chip(layer, head) {
    const made = el("span", { class: "kv", title: `query head ${head} reads kv head ${layer.kv[head]}` },
      `kv ${layer.kv[head]}`);
    made.style.borderColor = Colour.kv(layer.kv[head]);
    return made;
  }

  function told(unit, on) {
    const { words } = State.tab();
    const badge = State.badges()[unit];
    if (now.switches.merged) return [];
    if (!now.exercise) {
      return [Badges.shown(badge), badge && badge.role ? el("p", { class: "words" }, `looks at ${words[badge.role]}`) : null]
        .filter(Boolean);
    }
    const guess = Badges.guess(now.exercise, unit, badge, words, (role) => {
      now.exercise.guesses[unit] = role;
      on.guess();
    });
    return now.exercise.over ? [guess, Badges.shown(badge)] : [guess];
  }

  function onOff(head, name, on) {
    const id = `on-${head}`;
    return el("label", { for: id, class: "option" },
      el("input", {
        type: "checkbox", id, checked: !now.switches.off[head],
        onchange: (event) => on.off(head, !event.target.checked),
      }), `${name} is on`);
  }

  return { draw, paint };
})();
