// The page: what is where, and what is drawn again when something changes.
const Page = (() => {
  const { el, foreign, fill } = Dom;
  const { data, now } = State;
  const colours = Colour.table(data.colours);
  const at = (id) => document.getElementById(id);

  function start() {
    document.title = data.title;
    at("title").textContent = data.title;
    if (data.tabs.length > 1) at("tabs").append(...data.tabs.map(tabButton));
    State.restart({ tab: 0 });
    build();
    window.addEventListener("resize", paint);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  }

  function tabButton(one, i) {
    return el("button", {
      type: "button", role: "tab", id: `tab-${i}`, "aria-controls": "main", onclick: () => open(i),
      onkeydown: (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!step) return;
        open((i + step + data.tabs.length) % data.tabs.length);
        at(`tab-${now.tab}`).focus();
      },
    }, foreign(one.name));
  }

  function open(tab) {
    State.restart({ tab });
    build();
  }

  // A tab from nothing.
  function build() {
    data.tabs.forEach((_, i) => {
      const button = at(`tab-${i}`);
      if (!button) return;
      button.setAttribute("aria-selected", String(i === now.tab));
      button.setAttribute("tabindex", i === now.tab ? "0" : "-1");
    });
    if (data.tabs.length > 1) {
      at("main").setAttribute("role", "tabpanel");
      at("main").setAttribute("aria-labelledby", `tab-${now.tab}`);
    }
    const places = ["controls", "numbers", "switches-place", "exercise", "cards"].map((id) => el("div", { id }));
    fill(at("main"), ...State.tab().text.map((text) => el("p", { class: "intro" }, foreign(text))), ...places,
      el("div", { id: "reading" }, el("div", { id: "large-place" }), el("div", { id: "row-place" })),
      el("div", { id: "meter-place" }));
    Large.build(at("large-place"), (t, s) => pick(now.unit, t, s), () => Large.draw(colours), paint);
    rebuild();
  }

  // Another model or layer: its controls, then the rest.
  function rebuild() {
    Controls.draw(at("controls"), {
      model: (model) => { State.restart({ model }); rebuild(); },
      layer: (layer) => { State.restart({ layer }); rebuild(); },
      step: () => { now.exercise = null; draw(); },
    });
    drawSwitches();
    fill(at("meter-place"), Meter.panel(State.model().meter, State.model().context));
    draw();
  }

  function drawSwitches() {
    fill(at("switches-place"), Switches.panel(State.layer(), now.switches, change, () => {
      now.switches = Arithmetic.asTrained(State.layer());
      now.unit = Math.min(now.unit, State.layer().n - 1);
      drawSwitches();
      draw();
    }));
  }

  function change(patch) {
    now.switches = { ...now.switches, ...patch };
    if (now.switches.merged) { now.unit = 0; now.exercise = null; }
    draw();
  }

  function draw() {
    Controls.numbers(at("numbers"));
    drawExercise();
    Cards.draw(at("cards"), colours, {
      pick,
      unit: (unit) => { now.unit = unit; paint(); },
      off: (head, isOff) => change({ off: now.switches.off.map((was, i) => (i === head ? isOff : was)) }),
      guess: draw,
    });
    paint();
  }

  // What a click changes.
  function paint() {
    Cards.paint(at("cards"), colours);
    Large.draw(colours);
    fill(at("row-place"), Row.panel(State.look(), (s) => { now.s = s; Cards.paint(at("cards"), colours); Large.draw(colours); }));
    at("change").textContent = changed();
  }

  function changed() {
    const layer = State.layer();
    if (layer.why || layer.output_why) return "";
    const trained = { ...Arithmetic.asTrained(layer), wo: now.switches.wo };
    const [before, after] = [trained, now.switches].map(State.outputsWith);
    return Switches.told(layer, now.switches, before, after, now.t);
  }

  function pick(unit, t, s) {
    Object.assign(now, { unit, t, s });
    Large.follow();
    paint();
  }

  function drawExercise() {
    const named = State.badges().length > 0 && State.badges().every((badge) => badge.role);
    if (!named) return fill(at("exercise"), el("p", { class: "note" }, "Heads have no names at this checkpoint: no exercise."));
    if (!now.exercise) {
      return fill(at("exercise"), el("button", { type: "button", id: "exercise-start", onclick: () => {
        now.exercise = { order: Badges.shuffled(State.layer().n), guesses: {}, over: false };
        now.switches = { ...now.switches, merged: false };
        [now.unit] = now.exercise.order;
        drawSwitches();
        draw();
      } }, "Exercise: shuffle the maps, hide the badges, and guess"));
    }
    const { guesses } = now.exercise;
    const left = now.exercise.order.filter((head) => !guesses[head]).length;
    return fill(at("exercise"),
      el("button", { type: "button", id: "exercise-answers", disabled: left > 0 || now.exercise.over, onclick: () => {
        now.exercise.over = true;
        draw();
      } }, left ? `Show the answers (${left} to guess)` : "Show the answers"),
      el("button", { type: "button", id: "exercise-end", onclick: () => { now.exercise = null; draw(); } }, "End the exercise"));
  }

  return { start };
})();
Page.start();
