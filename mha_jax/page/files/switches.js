// The switches of a layer, and what they change.
const Switches = (() => {
  const { el } = Dom;

  // `change(patch)` sets switches and draws again.
  function panel(layer, switches, change, reset) {
    const off = (why) => ({ disabled: Boolean(why), title: why });
    const box = (id, text, checked, set, why) => el("label", { for: id, class: why ? "option off" : "option" },
      el("input", { type: "checkbox", id, checked, ...off(why), onchange: (event) => set(event.target.checked) }),
      text, why ? el("small", {}, ` (${why})`) : null);
    const noWo = layer.output_why || (layer.wo ? "" : "the model has no W_O");
    const noMerge = layer.why || (layer.n === 1 ? "there is one" : "") || (layer.sink ? "sink logits belong to single heads" : "");
    const heat = el("output", { for: "temperature", id: "temperature-told" }, String(switches.temperature));
    return el("fieldset", { id: "switches" }, el("legend", {}, "Switches of this layer"),
      layer.why ? el("p", { class: "note" }, `${layer.why}.`) : null,
      box("scale", "divide q · k by √d_head", switches.scale, (on) => change({ scale: on }), layer.why),
      box("wo", "multiply by W_O", switches.wo && Boolean(layer.wo), (on) => change({ wo: on }), layer.why || noWo),
      box("merged", `merge all heads into one softmax over the whole width`, switches.merged,
        (on) => change({ merged: on }), noMerge),
      el("label", { for: "temperature", class: "option" }, "temperature ",
        el("input", {
          type: "range", id: "temperature", min: "-3", max: "3", step: "0.25", ...off(layer.why),
          value: String(Math.log2(switches.temperature)),
          "aria-valuetext": String(switches.temperature),
          oninput: (event) => {
            const temperature = Number((2 ** Number(event.target.value)).toFixed(2));
            heat.textContent = String(temperature);
            event.target.setAttribute("aria-valuetext", String(temperature));
            change({ temperature });
          },
        }), heat),
      el("button", { id: "reset", type: "button", onclick: reset }, "As trained"),
      el("p", { id: "change", role: "status" }));
  }

  // How far the layer's output is from the model's. `trained` and `now` are outputs of all rows.
  function told(layer, switches, trained, now, t) {
    if (layer.why || layer.output_why) return "";
    const percent = (x) => `${(100 * x).toFixed(1)} %`;
    const row = Arithmetic.change([trained[t]], [now[t]]);
    const off = switches.off.filter(Boolean).length;
    const heads = off ? `, ${off} head${off > 1 ? "s" : ""} off` : "";
    const space = layer.wo && !switches.wo ? ", both before W_O" : "";
    return `The output of this layer differs from the model's by ${percent(row)} of its length at this row, `
      + `${percent(Arithmetic.change(trained, now))} over all rows${heads}${space}. `
      + "Later layers keep the q, k and v of the model.";
  }

  return { panel, told };
})();
