// Colours: of weights the map that Python sends, of kv heads a set for every colour vision.
const Colour = (() => {
  // Okabe and Ito 2008; a kv head has its number in words as well.
  const KV = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999"];

  // 256 colours between the given ones, [r, g, b] each.
  function table(places) {
    return Array.from({ length: 256 }, (_, i) => {
      const at = (i / 255) * (places.length - 1);
      const low = Math.min(Math.floor(at), places.length - 2);
      return places[low].map((x, c) => Math.round(x + (at - low) * (places[low + 1][c] - x)));
    });
  }

  function kv(head) {
    return KV[head % KV.length];
  }

  return { table, kv };
})();
