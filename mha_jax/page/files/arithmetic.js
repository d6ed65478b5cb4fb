// Attention from q, k, v and W_O. Pure: no page, no state. ../arithmetic.py mirrors it in numpy.
//
// A layer holds query [t, n, h], key [s, k, h], value [s, k, hv], wo [n*hv, d], each a flat array.
// A unit is what has one softmax: a head, or all heads of the layer where they are merged.
// Switches: {scale, temperature, merged, off: [head -> bool], wo}.
const Arithmetic = (() => {
  function sees(mask, t, s) {
    if (mask.kind === "full") return true;
    if (mask.kind === "context_query") return s < mask.n_context;
    return s <= t && (!mask.window || t - s < mask.window || s < mask.n_sinks);
  }

  function asTrained(layer) {
    const off = new Array(layer.n).fill(false);
    return { scale: layer.scaled, temperature: 1, merged: false, off, wo: true };
  }

  // Whether scores, weights and z are the model's, so that its own last digits are known.
  function isTrained(layer, switches) {
    return switches.scale === layer.scaled && switches.temperature === 1 && !switches.merged;
  }

  function units(layer, switches) {
    const heads = Array.from({ length: layer.n }, (_, head) => head);
    return switches.merged ? [heads] : heads.map((head) => [head]);
  }

  // What q . k is multiplied by: 1 / sqrt(d_head), of a head as wide as the unit.
  function factor(layer, switches) {
    if (!switches.scale) return 1;
    return switches.merged ? layer.scale / Math.sqrt(layer.n) : layer.scale;
  }

  // The products behind one q . k, of all heads of the unit one after the other.
  function products(layer, heads, t, s) {
    const out = [];
    for (const head of heads) {
      for (let j = 0; j < layer.h; j++) {
        const q = layer.query[(t * layer.n + head) * layer.h + j];
        const k = layer.key[(s * layer.k + layer.kv[head]) * layer.h + j];
        out.push({ head, j, left: q, right: k, product: q * k });
      }
    }
    return out;
  }

  function dot(layer, heads, t, s) {
    const { n, k, h, kv, query, key } = layer;
    let sum = 0;
    for (const head of heads) {
      const q = (t * n + head) * h;
      const other = (s * k + kv[head]) * h;
      for (let j = 0; j < h; j++) sum += query[q + j] * key[other + j];
    }
    return sum;
  }

  // One row of one unit, from q . k to the weights.
  function row(layer, switches, heads, t) {
    const scale = factor(layer, switches);
    const sink = layer.sink ? layer.sink[heads[0]] : null;
    const keys = [];
    let most = sink === null ? -Infinity : sink;
    for (let s = 0; s < layer.t; s++) {
      const visible = sees(layer.mask, t, s);
      const raw = dot(layer, heads, t, s);
      const score = (raw * scale) / switches.temperature;
      if (visible && score > most) most = score;
      keys.push({ s, visible, dot: raw, score, shifted: 0, exp: 0, weight: 0 });
    }
    let sum = sink === null ? 0 : Math.exp(sink - most);
    for (const one of keys) {
      if (!one.visible) continue;
      one.shifted = one.score - most;
      one.exp = Math.exp(one.shifted);
      sum += one.exp;
    }
    for (const one of keys) if (one.visible) one.weight = one.exp / sum;
    if (isTrained(layer, switches)) {
      const first = (heads[0] * layer.t + t) * layer.t;
      for (const one of keys) {
        one.score = patched(layer, "scores", first + one.s, one.score);
        one.weight = patched(layer, "weights", first + one.s, one.weight);
      }
    }
    return { keys, most, sum, sink, scale };
  }

  // The weights of every unit, [t, s]. Where the page does not compute them, the model's.
  function maps(layer, switches) {
    const size = layer.t * layer.t;
    if (layer.why) {
      return units(layer, switches).map(([head]) => layer.weights.subarray(head * size, (head + 1) * size));
    }
    const scale = factor(layer, switches) / switches.temperature;
    return units(layer, switches).map((heads) => {
      const sink = layer.sink ? layer.sink[heads[0]] : -Infinity;
      const weights = new Float64Array(size);
      for (let t = 0; t < layer.t; t++) softmaxInto(weights, layer, heads, t, scale, sink);
      return weights;
    });
  }

  function softmaxInto(weights, layer, heads, t, scale, sink) {
    const first = t * layer.t;
    let most = sink;
    for (let s = 0; s < layer.t; s++) {
      if (!sees(layer.mask, t, s)) continue;
      weights[first + s] = dot(layer, heads, t, s) * scale;
      if (weights[first + s] > most) most = weights[first + s];
    }
    let sum = sink === -Infinity ? 0 : Math.exp(sink - most);
    for (let s = 0; s < layer.t; s++) {
      if (!sees(layer.mask, t, s)) continue;
      weights[first + s] = Math.exp(weights[first + s] - most);
      sum += weights[first + s];
    }
    for (let s = 0; s < layer.t; s++) if (sum > 0) weights[first + s] /= sum;
  }

  // z of a head at row t: its values, weighted. `weights` is a map of `maps`.
  function z(layer, weights, head, t) {
    const { t: length, k, hv, kv, value } = layer;
    const out = new Float64Array(hv);
    for (let s = 0; s < length; s++) {
      const weight = weights[t * length + s];
      if (weight === 0) continue;
      const first = (s * k + kv[head]) * hv;
      for (let j = 0; j < hv; j++) out[j] += weight * value[first + j];
    }
    return out;
  }

  // What a head adds to the layer's output: its rows of W_O applied to z, or z in its own columns.
  function headOut(layer, switches, head, values) {
    const rows = layer.hv;
    if (!layer.wo || !switches.wo) {
      const out = new Float64Array(layer.n * rows);
      out.set(values, head * rows);
      return out;
    }
    const d = layer.wo.length / (layer.n * rows);
    const out = new Float64Array(d);
    for (let j = 0; j < rows; j++) {
      const first = (head * rows + j) * d;
      for (let i = 0; i < d; i++) out[i] += values[j] * layer.wo[first + i];
    }
    return out;
  }

  // The layer's output at row t: the sum over the heads that are on, and the bias.
  function output(layer, switches, allMaps, t) {
    const values = new Float64Array(layer.n * layer.hv);
    for (let head = 0; head < layer.n; head++) {
      if (switches.off[head]) continue;
      values.set(z(layer, allMaps[switches.merged ? 0 : head], head, t), head * layer.hv);
    }
    if (!layer.wo || !switches.wo) return values;
    const d = layer.wo.length / values.length;
    const out = layer.bo ? Float64Array.from(layer.bo) : new Float64Array(d);
    for (let j = 0; j < values.length; j++) {
      if (values[j] === 0) continue;
      for (let i = 0; i < d; i++) out[i] += values[j] * layer.wo[j * d + i];
    }
    return out;
  }

  function outputs(layer, switches, allMaps) {
    return Array.from({ length: layer.t }, (_, t) => output(layer, switches, allMaps, t));
  }

  // |now - before| / |before|, over one row or all of them.
  function change(before, now) {
    let moved = 0;
    let all = 0;
    before.forEach((row, t) => row.forEach((x, i) => {
      moved += (now[t][i] - x) ** 2;
      all += x ** 2;
    }));
    return all > 0 ? Math.sqrt(moved / all) : 0;
  }

  function norm(x) {
    return Math.sqrt(x.reduce((sum, one) => sum + one * one, 0));
  }

  function patched(layer, name, place, ours) {
    const found = layer.patches[name] && layer.patches[name].get(place);
    return found === undefined ? ours : found;
  }

  function fixed(x, digits) {
    const text = x.toFixed(digits);
    return Number(text) === 0 ? (0).toFixed(digits) : text;
  }

  // Bytes that a layer keeps of a sequence: `layer_cost.cache_bytes`.
  function cacheBytes(layer, context, size) {
    if (layer.quantised) {
      const { k, h, bits, group, tail } = layer.quantised;
      const s = Math.floor(Math.max(context - tail, 0) / group) * group;
      const numbers = 2 * s * k * Math.floor((h * bits) / 8);
      const scales = (2 * s * k * h) / group + 2 * s * k;
      return numbers + (scales + 2 * Math.min(context, tail + group) * k * h) * size;
    }
    const kept = layer.slots ? Math.min(context, layer.slots) : context;
    return (kept * layer.per_token + layer.state) * size;
  }

  return {
    sees, asTrained, isTrained, units, factor, products, row, maps, z, headOut, output, outputs,
    change, norm, patched, fixed, cacheBytes,
  };
})();
