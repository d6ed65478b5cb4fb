// What is looked at, and what follows from it. Arrays and maps are kept once they are computed.
const State = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const layers = new WeakMap(); // a layer as it was sent -> the same with its arrays
  const maps = new WeakMap(); // layer -> {switches as text: maps}
  const outputs = new WeakMap(); // layer -> {switches as text: output}
  const now = { tab: 0, model: 0, step: 0, layer: 0, unit: 0, t: 0, s: 0, bright: false, window: null, exercise: null, switches: null };

  function tab() {
    return data.tabs[now.tab];
  }

  function model() {
    return tab().models[now.model];
  }

  // Tokens as they are written; a space could not be seen.
  function tokens() {
    return model().tokens.map((token) => (token === " " ? "␣" : token));
  }

  // The checkpoint of a model that is nearest to the chosen step.
  function viewOf(one) {
    const far = (view) => Math.abs(view.step - now.step);
    return one.views.reduce((best, view) => (far(view) < far(best) ? view : best));
  }

  function view() {
    return viewOf(model());
  }

  function layer() {
    const told = view().layers[now.layer];
    if (!layers.has(told)) layers.set(told, Data.layer(data, told, model().tokens.length));
    return layers.get(told);
  }

  function badges() {
    return view().badges[now.layer] || [];
  }

  function mapsWith(switches) {
    const key = `${switches.scale} ${switches.temperature} ${switches.merged}`;
    const kept = maps.get(layer()) || {};
    if (!kept[key]) kept[key] = Arithmetic.maps(layer(), switches);
    // The trained ones, and the last others: a slider would fill the memory.
    const trained = kept.trained;
    maps.set(layer(), { [key]: kept[key], ...(trained ? { [trained]: kept[trained], trained } : { trained: key }) });
    return kept[key];
  }

  // The layer's output at every row. `outputs` keeps the last two: as trained, and as switched.
  function outputsWith(switches) {
    const key = JSON.stringify(switches);
    const kept = outputs.get(layer()) || new Map();
    const found = kept.get(key) || Arithmetic.outputs(layer(), switches, mapsWith(switches));
    kept.delete(key);
    kept.set(key, found);
    if (kept.size > 2) kept.delete(kept.keys().next().value);
    outputs.set(layer(), kept);
    return found;
  }

  // Another tab, model or layer: what was switched is as trained again.
  function restart(changed) {
    Object.assign(now, { unit: 0, exercise: null }, changed);
    if ("tab" in changed) {
      Object.assign(now, { model: 0, layer: 0 });
      now.step = Math.max(...model().views.map((one) => one.step));
    }
    now.layer = Math.min(now.layer, view().layers.length - 1);
    now.switches = Arithmetic.asTrained(layer());
    const length = model().tokens.length;
    now.window = { t0: 0, s0: 0, cells: length };
    const [first] = mapsWith(now.switches);
    if ("tab" in changed || now.t >= length || now.s >= length) middle(length, first);
  }

  // A row in the middle, and its heaviest key.
  function middle(length, weights) {
    now.t = Math.floor(length / 2);
    const row = Array.from(weights.subarray(now.t * length, (now.t + 1) * length));
    now.s = row.indexOf(Math.max(...row));
  }

  function headName(head) {
    return now.exercise && !now.exercise.over ? `Map ${Badges.letter(now.exercise.order.indexOf(head))}` : `Head ${head}`;
  }

  function unitName(unit) {
    return now.switches.merged ? "All heads as one" : headName(unit);
  }

  // What Row shows: see there.
  function look() {
    const heads = Arithmetic.units(layer(), now.switches)[now.unit];
    return {
      layer: layer(), switches: now.switches, maps: mapsWith(now.switches), heads, unit: now.unit,
      t: now.t, s: now.s, tokens: tokens(), digits: data.digits, name: unitName(now.unit), headName,
    };
  }

  return {
    data, now, tab, model, tokens, viewOf, view, layer, badges, mapsWith, outputsWith, restart, unitName, headName, look,
  };
})();
