// Elements whose text is text: nothing here reads markup.
const Dom = (() => {
  // el("button", {id: "x", onclick: f, disabled: true}, "text", child, ...)
  function el(tag, given = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(given)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== null) made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  // Text of a run, whatever its direction, beside ours.
  function foreign(text) {
    return el("bdi", {}, text);
  }

  // Fills an element anew; what had the focus in it has it again.
  function fill(place, ...children) {
    const active = document.activeElement;
    const id = active && place.contains(active) ? active.id : "";
    place.replaceChildren(...children.filter((child) => child !== null));
    const again = id && document.getElementById(id);
    if (again) again.focus({ preventScroll: true });
  }

  // One of several, as radio buttons.
  function choice(name, legend, labels, chosen, onchange) {
    const options = labels.map((label, i) => {
      const id = `${name}-${i}`;
      const input = el("input", {
        type: "radio", name, id, checked: i === chosen, onchange: () => onchange(i),
      });
      return el("label", { for: id, class: "option" }, input, foreign(label));
    });
    return el("fieldset", { class: "choice" }, el("legend", {}, legend), ...options);
  }

  // Numbers of a vector, of which one is picked: with the pointer, or with the arrow keys.
  function vector(id, label, texts, onpick) {
    let picked = -1;
    const cells = texts.map((text, i) => el("span", {
      role: "option", id: `${id}-${i}`, "aria-selected": "false", class: "number",
      onpointerenter: () => pick(i), onclick: () => pick(i),
    }, text));
    const list = el("div", {
      role: "listbox", tabindex: "0", id, "aria-label": label, class: "vector",
      onkeydown: (event) => {
        const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
        if (!step) return;
        event.preventDefault();
        pick(Math.min(Math.max(picked + step, 0), cells.length - 1));
      },
    }, ...cells);
    function pick(i) {
      if (picked >= 0) cells[picked].setAttribute("aria-selected", "false");
      picked = i;
      cells[i].setAttribute("aria-selected", "true");
      list.setAttribute("aria-activedescendant", `${id}-${i}`);
      onpick(i);
    }
    return list;
  }

  return { el, foreign, fill, choice, vector };
})();
