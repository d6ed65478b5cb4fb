// A row's arithmetic as text: columns with tabs between them, as a spreadsheet reads them.
const Text = (() => {
  function row(look, found) {
    const number = (x) => Arithmetic.fixed(x, look.digits);
    const lines = [
      `${look.name}, row ${look.t}: ${look.tokens[look.t]}`,
      ["s", "key", ...Row.columns(look, found.row)].join("\t"),
      ...found.row.keys.map((one) => [one.s, look.tokens[one.s], ...Row.cells(look, one)].join("\t")),
      `max ${number(found.row.most)}\tsum of exp ${number(found.row.sum)}`,
      `q . k of ${look.tokens[look.t]} and ${look.tokens[look.s]}`,
      ...Arithmetic.products(look.layer, look.heads, look.t, look.s).map(
        (one) => `${one.head}.${one.j}\t${number(one.left)}\tx\t${number(one.right)}\t=\t${number(one.product)}`),
      ["z", ...found.z.flatMap((one) => one.shown).map(number)].join("\t"),
    ];
    if (found.output) {
      for (const head of look.heads) {
        lines.push([`${look.headName(head)} adds`, ...found.outs[head].map(number)].join("\t"));
      }
      lines.push(["output", ...Array.from(found.output, number)].join("\t"));
    }
    return `${lines.join("\n")}\n`;
  }

  return { row };
})();
