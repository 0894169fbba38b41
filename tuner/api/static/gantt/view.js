// The visible part of the run, for all charts of a page.
"use strict";

const MIN_SPAN_NS = 200;

// State that all charts of a page share: the visible time range, and the colouring of bars.
export class View {
  constructor(endNs) {
    this.endNs = endNs;
    this.from = 0;
    this.to = endNs;
    this.byOp = false;
    this.charts = [];
  }

  show(from, to) {
    const span = Math.min(this.endNs, Math.max(MIN_SPAN_NS, to - from));
    this.from = Math.min(Math.max(0, from), this.endNs - span);
    this.to = this.from + span;
    this.changed();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    const span = Math.min(this.endNs, Math.max(MIN_SPAN_NS, (this.to - this.from) * factor));
    const share = (at - this.from) / (this.to - this.from);
    this.show(at - span * share, at - span * share + span);
  }

  pan(share) {
    const by = (this.to - this.from) * share;
    this.show(this.from + by, this.to + by);
  }

  changed() {
    for (const chart of this.charts) chart.dirty();
  }
}
