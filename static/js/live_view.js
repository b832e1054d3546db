// The part of the history that all charts of the page show: the newest `seconds`, or a range that the reader chose.
const SHORTEST_S = 20;
const KEYS = { "+": "in", "=": "in", "-": "out", "[": "earlier", "]": "later" };

export class View {
  // bounds: () => [from, to] of the loaded data
  constructor(bounds, changed) {
    this.bounds = bounds;
    this.changed = changed;
    this.own = null;
    document.addEventListener("keydown", (event) => {
      const move = KEYS[event.key];
      if (move && event.target.closest(".live-chart, .heat")) { event.preventDefault(); this[move](); }
    });
  }

  get range() { return this.own ?? this.bounds(); }

  get zoomed() { return this.own !== null; }

  choose(from, to) {
    const [first, last] = this.bounds();
    const wide = Math.max(SHORTEST_S, to - from);
    const begin = Math.min(Math.max(first, from), last - wide);
    this.own = wide >= last - first ? null : [begin, begin + wide];
    this.changed();
  }

  scaled(factor) {
    const [from, to] = this.range;
    const middle = this.zoomed ? (from + to) / 2 : to - (to - from) / 4; // zooms the live range near its end
    const half = (to - from) * factor / 2;
    this.choose(middle - half, middle + half);
  }

  moved(share) {
    const [from, to] = this.range;
    if (this.zoomed) this.choose(from + (to - from) * share, to + (to - from) * share);
  }

  in() { this.scaled(0.5); }

  out() { this.scaled(2); }

  earlier() { this.moved(-0.5); }

  later() { this.moved(0.5); }

  reset() {
    this.own = null;
    this.changed();
  }
}
