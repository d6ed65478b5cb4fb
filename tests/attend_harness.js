// Reads [page scripts' folder, page data] and tells, with the page's own arithmetic, what it shows.
const fs = require("fs");
const [folder, file] = process.argv.slice(2);
const read = (name) => fs.readFileSync(`${folder}/${name}`, "utf8");
const [Arithmetic, Data] = new Function(
  `"use strict";${read("arithmetic.js")}\n${read("data.js")}\nreturn [Arithmetic, Data];`)();
const { data, switches, cache } = JSON.parse(fs.readFileSync(file, "utf8"));
const model = data.tabs[0].models[0];

function shown(layer, changed) {
  const set = { ...Arithmetic.asTrained(layer), ...changed };
  const maps = Arithmetic.maps(layer, set);
  const units = Arithmetic.units(layer, set);
  const trained = Arithmetic.isTrained(layer, set);
  const text = (x) => Arithmetic.fixed(x, data.digits);
  const known = (name, place, x) => text(trained ? Arithmetic.patched(layer, name, place, x) : x);
  const rows = units.map((heads) => model.tokens.map((_, t) => Arithmetic.row(layer, set, heads, t)));
  const out = { maps: maps.map((map) => Array.from(map)) };
  out.scores = rows.map((unit) => unit.map((row) => row.keys.map((one) => (one.visible ? text(one.score) : "hidden"))));
  out.weights = rows.map((unit) => unit.map((row) => row.keys.map((one) => text(one.weight))));
  out.z = model.tokens.map((_, t) => layer.kv.map((_, head) => {
    const z = Arithmetic.z(layer, maps[set.merged ? 0 : head], head, t);
    return Array.from(z, (x, j) => known("z", (t * layer.n + head) * layer.hv + j, x));
  }));
  out.out = model.tokens.map((_, t) => layer.kv.map((_, head) => {
    const z = Arithmetic.z(layer, maps[set.merged ? 0 : head], head, t);
    const made = Arithmetic.headOut(layer, set, head, z);
    return Array.from(made, (x, i) => known("out", (t * layer.n + head) * made.length + i, x));
  }));
  const now = Arithmetic.outputs(layer, set, maps);
  const before = { ...Arithmetic.asTrained(layer), wo: set.wo };
  out.output = now.map((row) => Array.from(row));
  out.change = Arithmetic.change(Arithmetic.outputs(layer, before, Arithmetic.maps(layer, before)), now);
  return out;
}

const layers = model.views[0].layers.map((told) => Data.layer(data, told, model.tokens.length));
const bytes = cache.map(([kept, context, size]) => kept.reduce((sum, one) => sum + Arithmetic.cacheBytes(one, context, size), 0));
console.log(JSON.stringify({ layers: layers.map((layer) => switches.map((one) => shown(layer, one))), bytes }));
