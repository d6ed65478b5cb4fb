// The cache meter: bytes that decoding keeps, at a context, a batch and a dtype of the reader's.
const Meter = (() => {
  const { el, fill } = Dom;
  const MOST = 10_000_000;

  function bytes(x) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let power = 0;
    let short = x;
    while (short >= 1024 && power < units.length - 1) { short /= 1024; power += 1; }
    return `${x.toLocaleString("en")} B${power ? ` = ${short.toPrecision(4)} ${units[power]}` : ""}`;
  }

  function total(layers, context, batch, size) {
    return batch * layers.reduce((sum, layer) => sum + Arithmetic.cacheBytes(layer, context, size), 0);
  }

  function panel(meter, context) {
    const given = { context, batch: 1, dtype: meter.dtype };
    const table = el("tbody", {});
    const number = (name) => el("label", { for: `meter-${name}`, class: "option" }, `${name} `, el("input", {
      type: "number", id: `meter-${name}`, min: "1", max: String(MOST), step: "1", value: String(given[name]),
      oninput: (event) => {
        const x = Math.floor(Number(event.target.value));
        if (!(x >= 1 && x <= MOST)) return;
        given[name] = x;
        draw();
      },
    }));
    const dtypes = Object.keys(meter.bytes).map((name) => el("option", { value: name, selected: name === given.dtype }, name));
    const dtype = el("label", { for: "meter-dtype", class: "option" }, "dtype ",
      el("select", { id: "meter-dtype", onchange: (event) => { given.dtype = event.target.value; draw(); } }, ...dtypes));
    function draw() {
      const found = Object.entries(meter.models).map(([name, layers]) => (
        [name, total(layers, given.context, given.batch, meter.bytes[given.dtype])]));
      const most = Math.max(...found.map(([, x]) => x), 1);
      fill(table, ...found.map(([name, x]) => {
        const bar = el("span", { class: "bar" });
        bar.style.width = `${(100 * x) / most}%`;
        return el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "bytes" }, bytes(x)),
          el("td", { class: "bars", "aria-hidden": "true" }, bar));
      }));
    }
    draw();
    return el("section", { id: "meter", "aria-labelledby": "meter-title" },
      el("h3", { id: "meter-title" }, "Cache: what decoding keeps of keys and values, all layers"),
      el("div", { class: "options" }, number("context"), number("batch"), dtype),
      el("div", { class: "scroll" }, el("table", {}, table)));
  }

  return { panel };
})();
