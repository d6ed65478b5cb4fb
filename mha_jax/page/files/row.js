// One row of a map, from q . k to what the head adds to the output, with the terms of every number.
const Row = (() => {
  const { el, foreign, fill, vector } = Dom;

  // What is computed of the row that is looked at. `look` is Page's: layer, switches, maps, heads
  // (of the unit), unit, t, s, tokens, digits, name.
  function computed(look) {
    const { layer, switches, heads, t } = look;
    const row = Arithmetic.row(layer, switches, heads, t);
    const trained = Arithmetic.isTrained(layer, switches);
    const z = heads.map((head) => {
      const values = Arithmetic.z(layer, look.maps[look.unit], head, t);
      const first = (t * layer.n + head) * layer.hv;
      return { head, values, shown: shownAs(layer, "z", first, values, trained) };
    });
    if (layer.output_why) return { row, z, outs: [], output: null };
    const outs = Array.from({ length: layer.n }, (_, head) => {
      const map = look.maps[switches.merged ? 0 : head];
      const values = Arithmetic.headOut(layer, switches, head, Arithmetic.z(layer, map, head, t));
      const first = (t * layer.n + head) * values.length;
      return shownAs(layer, "out", first, values, trained && layer.wo !== null && switches.wo);
    });
    return { row, z, outs, output: Arithmetic.output(layer, switches, look.maps, t) };
  }

  function shownAs(layer, name, first, values, trained) {
    if (!trained) return Array.from(values);
    return Array.from(values, (x, i) => Arithmetic.patched(layer, name, first + i, x));
  }

  function panel(look, onkey) {
    const place = el("section", { id: "row", "aria-labelledby": "row-title" });
    const title = el("h3", { id: "row-title" }, `${look.name}: what `, foreign(look.tokens[look.t]),
      ` (row ${look.t}) reads`);
    if (look.layer.why) {
      fill(place, title, el("p", { class: "note" }, `${look.layer.why}.`), plainTable(look));
      return place;
    }
    const found = computed(look);
    const copied = el("textarea", { readonly: true, rows: "6", hidden: true, "aria-label": "the arithmetic as text" });
    const copy = el("button", { id: "copy", type: "button", onclick: () => copyOut(copied, look, found) },
      "Copy as text");
    fill(place, title, copy, copied, ...scoreStep(look, found.row, onkey), ...valueStep(look, found),
      ...outputStep(look, found));
    return place;
  }

  function copyOut(place, look, found) {
    place.value = Text.row(look, found);
    place.hidden = false;
    place.select();
    document.execCommand("copy"); // works without a server and in a notebook's frame
    document.getElementById("said").textContent = "The arithmetic is below as text, and copied.";
  }

  function plainTable(look) {
    const weights = look.maps[look.unit];
    const rows = look.tokens.map((token, s) => el("tr", {},
      el("th", { scope: "row" }, `${s} `, foreign(token)),
      el("td", {}, Arithmetic.fixed(weights[look.t * look.tokens.length + s], look.digits))));
    return el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "key"), el("th", { scope: "col" }, "weight"))),
      el("tbody", {}, ...rows)));
  }

  // Names of the columns between the key and the weight.
  function columns(look, row) {
    const width = Math.round(1 / row.scale ** 2);
    const scaled = row.scale === 1 ? "not scaled" : `÷ √${width}`;
    const heat = look.switches.temperature;
    return ["q · k", heat === 1 ? scaled : `${scaled} ÷ ${heat}`, "mask", "− max", "exp", "÷ sum = weight"];
  }

  function cells(look, one) {
    const number = (x) => Arithmetic.fixed(x, look.digits);
    const behind = one.visible
      ? ["sees", number(one.shifted), number(one.exp), number(one.weight)]
      : ["hidden", "−∞", number(0), number(0)];
    return [number(one.dot), one.visible ? number(one.score) : "−∞", ...behind];
  }

  function scoreStep(look, row, onkey) {
    const terms = el("div", { class: "terms", id: "terms-score", "aria-live": "polite" });
    const body = row.keys.map((one) => el("tr", {
      id: `key-${one.s}`, class: one.visible ? "" : "hidden-key", "aria-current": String(one.s === look.s),
      onpointerenter: () => show(one.s), onclick: () => { show(one.s); onkey(one.s); },
    }, el("th", { scope: "row" }, `${one.s} `, foreign(look.tokens[one.s])),
    ...cells(look, one).map((text) => el("td", {}, text))));
    let shown = look.s;
    function show(s) {
      body[shown].setAttribute("aria-current", "false");
      shown = s;
      body[s].setAttribute("aria-current", "true");
      fill(terms, ...productTerms(look, s, row.keys[s].dot));
    }
    show(look.s);
    const head = ["key", ...columns(look, row)].map((name) => el("th", { scope: "col" }, name));
    const sink = row.sink === null ? "" : `, with the sink logit ${Arithmetic.fixed(row.sink, look.digits)}`;
    const foot = `max ${Arithmetic.fixed(row.most, look.digits)}, sum of exp ${Arithmetic.fixed(row.sum, look.digits)}${sink}`;
    const table = el("table", { "aria-describedby": "row-foot" }, el("thead", {}, el("tr", {}, ...head)),
      el("tbody", {}, ...body));
    const scroll = el("div", {
      class: "scroll", id: "row-keys", tabindex: "0", role: "group",
      "aria-label": "keys of the row; arrow keys choose one",
      onkeydown: (event) => {
        const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
        if (!step) return;
        event.preventDefault();
        const s = Math.min(Math.max(shown + step, 0), body.length - 1);
        show(s);
        onkey(s);
        body[s].scrollIntoView({ block: "nearest" });
      },
    }, table);
    return [el("h4", {}, "1. Scores and softmax"), scroll, el("p", { id: "row-foot" }, foot), terms];
  }

  function productTerms(look, s, sum) {
    const all = Arithmetic.products(look.layer, look.heads, look.t, s);
    const texts = all.map((one) => ({
      name: look.heads.length > 1 ? `${one.head}.${one.j}` : `${one.j}`, left: one.left, right: one.right,
    }));
    return listed(look, ["q · k of ", foreign(look.tokens[look.t]), " and ", foreign(look.tokens[s])], texts, sum);
  }

  // "a, the sum of left x right" in words and numbers.
  function listed(look, title, terms, sum) {
    const number = (x) => Arithmetic.fixed(x, look.digits);
    const items = terms.map(({ name, token, left, right }) => el("li", {},
      el("span", { class: "of" }, `${name}`, token === undefined ? "" : " ", token === undefined ? "" : foreign(token)),
      ` ${number(left)} × ${number(right)} = ${number(left * right)}`));
    return [el("p", {}, ...title, ` = ${number(sum)}, the sum of`), el("ol", { class: "products" }, ...items)];
  }

  function valueStep(look, found) {
    const { layer } = look;
    const shown = found.z.flatMap((one) => one.shown);
    const terms = el("div", { class: "terms", id: "terms-z", "aria-live": "polite" });
    const list = vector("z", "z, the weighted values", shown.map((x) => Arithmetic.fixed(x, look.digits)), (i) => {
      const head = look.heads[Math.floor(i / layer.hv)];
      const j = i % layer.hv;
      const visible = found.row.keys.filter((one) => one.visible);
      fill(terms, ...listed(look, [`z ${i}`], visible.map((one) => ({
        name: one.s, token: look.tokens[one.s], left: one.weight,
        right: layer.value[(one.s * layer.k + layer.kv[head]) * layer.hv + j],
      })), shown[i]));
    });
    return [el("h4", {}, "2. Weighted values: z, the sum of weight × v"), list, terms];
  }

  function outputStep(look, found) {
    const { layer, switches, heads } = look;
    if (layer.output_why) return [el("p", { class: "note" }, `${layer.output_why}.`)];
    const through = layer.wo && switches.wo;
    const z = found.z.flatMap((one) => Array.from(one.values, (value, j) => ({ value, row: one.head * layer.hv + j })));
    const own = sum(heads.map((head) => found.outs[head]));
    const parts = [];
    if (through) {
      const terms = el("div", { class: "terms", id: "terms-out", "aria-live": "polite" });
      const list = vector("out", "what the head adds", own.map((x) => Arithmetic.fixed(x, look.digits)), (i) => {
        fill(terms, ...listed(look, [`output ${i} of the head`], z.map(({ value, row }) => ({
          name: `z ${row}`, left: value, right: layer.wo[row * own.length + i],
        })), own[i]));
      });
      parts.push(el("h4", {}, "3. What W_O makes of z: the head's part of the output"), list, terms);
    } else {
      const why = layer.wo ? "W_O is switched off" : "The model has no W_O";
      parts.push(el("p", { class: "note" }, `${why}: z is the head's part of the output, in its own columns.`));
    }
    if (heads.every((head) => switches.off[head])) {
      parts.push(el("p", { class: "note" }, "This head is switched off: it adds nothing."));
    }
    return [...parts, ...wholeStep(look, found)];
  }

  function wholeStep(look, found) {
    const { layer, switches } = look;
    const on = found.outs.map((_, head) => head).filter((head) => !switches.off[head]);
    const terms = el("div", { class: "terms", id: "terms-y", "aria-live": "polite" });
    const number = (x) => Arithmetic.fixed(x, look.digits);
    const list = vector("y", "output of the layer", Array.from(found.output, number), (i) => {
      const bias = layer.bo && switches.wo ? [el("li", {}, `bias ${number(layer.bo[i])}`)] : [];
      fill(terms, el("p", {}, `output ${i} = ${number(found.output[i])}, the sum of`),
        el("ol", { class: "products" }, ...on.map((head) => el("li", {}, `${look.headName(head)} ${number(found.outs[head][i])}`)), ...bias));
    });
    const sizes = on.map((head) => `${look.headName(head)} ${number(Arithmetic.norm(found.outs[head]))}`);
    return [
      el("h4", {}, "4. Output of the layer at this row: the sum over heads"), list, terms,
      el("p", {}, `Length of the parts: ${sizes.join(", ") || "none"}; of the sum ${number(Arithmetic.norm(found.output))}.`),
    ];
  }

  function sum(rows) {
    return rows[0].map((_, i) => rows.reduce((total, row) => total + row[i], 0));
  }

  return { panel, columns, cells };
})();
