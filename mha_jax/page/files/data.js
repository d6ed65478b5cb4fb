// What Python wrote into the page, and its arrays.
const Data = (() => {
  const found = new Map(); // name of an array -> Float32Array

  function floats(base64) {
    const text = atob(base64);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    return new Float32Array(bytes.buffer);
  }

  // A layer of a view with its arrays in place, as arithmetic.js takes it.
  function layer(data, told, length) {
    const read = (name) => {
      if (!name) return null;
      if (!found.has(name)) found.set(name, floats(data.arrays[name]));
      return found.get(name);
    };
    const patches = {};
    for (const [name, { at, value }] of Object.entries(told.patches || {})) {
      patches[name] = new Map(at.map((place, i) => [place, value[i]]));
    }
    const arrays = {};
    for (const name of ["query", "key", "value", "wo", "bo", "sink", "weights"]) {
      arrays[name] = read(told[name]);
    }
    return { ...told, ...arrays, patches, t: length };
  }

  return { layer };
})();
