// Roles and scores of heads, and the exercise that hides them.
const Badges = (() => {
  const { el, foreign } = Dom;

  function signed(x) {
    return x.toFixed(2);
  }

  // A score's name, by itself since it may be written from the right, its number and interval.
  function score(one) {
    const interval = "low" in one ? ` [${signed(one.low)}, ${signed(one.high)}]` : "";
    return [foreign(one.name), ` ${signed(one.corrected)}${interval}`];
  }

  // Role, its corrected score and interval, and the next scores.
  function shown(badge) {
    if (!badge) return el("p", { class: "badge none" }, "no scores at this checkpoint");
    const [first, ...others] = badge.scores;
    const role = badge.role ? foreign(badge.role) : first ? "scores" : "undefined";
    const own = first ? (first.name === badge.role ? score(first) : [role, ": ", ...score(first)]) : [role];
    const title = "mass on the role's key, 0 by chance, 1 for a head that looks nowhere else; with 95 % interval";
    return el("div", { class: badge.role === "mixed" ? "badge mixed" : "badge", title },
      el("strong", {}, ...own),
      others.length ? el("small", {}, ...others.flatMap((one, i) => [i ? ", " : " ", ...score(one)])) : null);
  }

  // The reader's guess for one map. `exercise`: {order, guesses, over}.
  function guess(exercise, head, badge, words, onguess) {
    const roles = Object.keys(words);
    const id = `guess-${head}`;
    const options = ["", ...roles].map((role) => el("option", { value: role, selected: exercise.guesses[head] === role },
      role ? words[role] : "looks at …"));
    const select = el("select", { id, disabled: exercise.over, onchange: (event) => onguess(event.target.value) }, ...options);
    const right = exercise.guesses[head] === badge.role;
    return el("div", { class: "guess" }, el("label", { for: id }, "This head "), select,
      exercise.over ? el("strong", { class: right ? "right" : "wrong" }, right ? "✓ right" : `✗ it is ${badge.role}`) : null);
  }

  function shuffled(n) {
    const order = Array.from({ length: n }, (_, i) => i);
    for (let i = n - 1; i > 0; i--) {
      const j = Math.floor(Math.random() * (i + 1));
      [order[i], order[j]] = [order[j], order[i]];
    }
    return order;
  }

  // Letters of maps whose heads are not to be told.
  function letter(place) {
    return String.fromCharCode(65 + (place % 26)) + (place < 26 ? "" : String(Math.floor(place / 26)));
  }

  return { shown, guess, shuffled, letter };
})();
