// Which model, which checkpoint, which layer; and the numbers of the models beside each other.
const Controls = (() => {
  const { el, foreign, fill, choice } = Dom;
  const { now } = State;

  // `on`: {model(i), layer(i), step()}.
  function draw(place, on) {
    const { models } = State.tab();
    const steps = State.model().views.map((view) => view.step);
    fill(place,
      models.length > 1 ? choice("model", "Model", models.map((one) => one.label), now.model, on.model)
        : el("p", {}, foreign(models[0].label)),
      State.view().layers.length > 1
        ? choice("layer", "Layer", State.view().layers.map((_, i) => String(i)), now.layer, on.layer) : null,
      steps.length > 1 ? slider(steps, on.step) : el("p", {}, steps[0] ? `Checkpoint of step ${steps[0]}.` : ""));
  }

  function slider(steps, onstep) {
    const told = el("output", { for: "step", id: "step-told" }, String(State.view().step));
    return el("label", { for: "step", class: "option" }, "training step ", el("input", {
      type: "range", id: "step", min: "0", max: String(steps.length - 1), step: "1",
      value: String(steps.indexOf(State.view().step)), "aria-valuetext": `step ${State.view().step}`,
      oninput: (event) => {
        now.step = steps[Number(event.target.value)];
        told.textContent = String(now.step);
        event.target.setAttribute("aria-valuetext", `step ${now.step}`);
        onstep();
      },
    }), told);
  }

  // The numbers of every model at the chosen step, the chosen model marked.
  function numbers(place) {
    const { models, numbers_of: of, chance } = State.tab();
    const found = models.map((one) => ({ label: one.label, view: State.viewOf(one) }));
    const names = [...new Set(found.flatMap(({ view }) => Object.keys(view.numbers)))];
    if (!names.length) return fill(place);
    const cells = (numbers_) => names.map((name) => el("td", {}, name in numbers_ ? numbers_[name].toFixed(3) : "–"));
    const rows = found.map(({ label, view }, i) => el("tr", { "aria-current": String(i === now.model) },
      el("th", { scope: "row" }, foreign(label), models[i].views.length > 1 ? ` at ${view.step}` : ""),
      ...cells(view.numbers)));
    const by = Object.keys(chance).length ? [el("tr", {}, el("th", { scope: "row" }, "by chance"), ...cells(chance))] : [];
    return fill(place, el("div", { class: "scroll" }, el("table", { id: "numbers-table" }, el("caption", {}, foreign(of)),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "model"),
        ...names.map((name) => el("th", { scope: "col" }, foreign(name))))),
      el("tbody", {}, ...rows, ...by))));
  }

  return { draw, numbers };
})();
