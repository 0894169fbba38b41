// The Gantt chart: a software rasteriser for the bars, which draws tens of thousands of them in a few milliseconds, and
// a canvas context for everything on top.
"use strict";

import { PHASES } from "./data.js";
import { Raster, shadesOf, word } from "./raster.js";

const GUTTER = 46;
const AXIS = 22;
// Heights of a single chart's bars, of each of two charts' bars, and the maximum height of a row.
const [TALL, HALF, MAX_ROW] = [540, 330, 26];
const MAX_MEASURES = 500;
// By number of decimals; creating one takes as long as drawing an axis.
const NUMBERS = [0, 1, 2, 3].map((digits) => new Intl.NumberFormat("en", { maximumFractionDigits: digits }));
const [MIN_OUTLINED, MAX_OUTLINES] = [6, 64];

function colour(name) {
  const context = colour.context ??= document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data];
}

const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;

export class Chart {
  constructor(figure, run, view, onSelect) {
    this.run = run;
    this.view = view;
    this.onSelect = onSelect;
    this.selected = -1;
    this.awaited = [];
    this.cursorRow = 0;
    this.rowPx = 0;
    this.isHalf = figure.classList.contains("both");
    this.topPx = 0;
    this.overview = document.createElement("canvas");
    this.overview.className = "overview";
    this.overview.setAttribute("aria-hidden", "true");
    this.bars = document.createElement("canvas");
    this.bars.className = "bars";
    this.bars.tabIndex = 0;
    this.bars.setAttribute("role", "application");
    this.bars.setAttribute("aria-roledescription", "Gantt chart");
    this.bars.setAttribute("aria-describedby", "gantt-help");
    this.bars.setAttribute("aria-label", `${figure.querySelector("figcaption").textContent.trim()}: ${run.numTasks} tasks on ${run.sms.length} SMs`);
    figure.append(this.overview, this.bars);
    this.context = this.bars.getContext("2d");
    view.charts.push(this);
    this.paint();
    new ResizeObserver(() => this.resize()).observe(this.bars);
    this.resize();
  }

  // Colours of the scheme; called again when it changes.
  paint() {
    const phases = PHASES.map((phase) => colour(`--g-${phase}`));
    this.idle = colour("--g-idle");
    this.ink = css(colour("--ink"));
    this.quiet = css(colour("--quiet"));
    this.line = css(colour("--line"));
    this.panel = css(colour("--panel"));
    this.mark = css(colour("--bad"));
    this.phaseColours = phases;
    this.opColours = this.run.view.op_names.map((_, op) => {
      const own = colour(`--c${(op % 8) + 1}`);
      const mixed = (share) => own.map((part, at) => Math.round(part * share + this.idle[at] * (1 - share)));
      return [phases[0], mixed(0.55), own, mixed(0.75)];
    });
    this.shades = null;
    this.dirty();
  }

  resize() {
    this.scale = Math.min(2, devicePixelRatio || 1);
    this.width = Math.max(80, Math.round(this.bars.getBoundingClientRect().width));
    const room = Math.round((this.isHalf ? HALF : TALL) * this.scale);
    const numRows = this.run.sms.length;
    this.fitRow = Math.min(Math.round(MAX_ROW * this.scale), Math.max(2, Math.floor(room / numRows)));
    this.plotHeight = Math.min(room, numRows * this.fitRow);
    this.height = AXIS + Math.ceil(this.plotHeight / this.scale);
    this.bars.style.height = `${this.height}px`;
    for (const [canvas, height] of [[this.bars, this.height], [this.overview, this.overview.clientHeight || 44]]) {
      canvas.width = this.width * this.scale;
      canvas.height = height * this.scale;
    }
    this.plotWidth = Math.round((this.width - GUTTER) * this.scale);
    this.image = this.context.createImageData(this.plotWidth, this.plotHeight);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.raster = new Raster(this.plotWidth, this.run.numLanes);
    this.rowPx = Math.max(this.rowPx, this.fitRow);
    this.shades = null;
    this.dirty();
  }

  dirty() {
    this.asked ??= requestAnimationFrame(() => {
      this.asked = null;
      const begin = performance.now();
      this.draw();
      performance.measure("gantt-draw", { start: begin });
      if (performance.getEntriesByName("gantt-draw").length > MAX_MEASURES) performance.clearMeasures("gantt-draw");
      this.bars.dataset.drawn = String(Number(this.bars.dataset.drawn ?? 0) + 1);
    });
  }

  x(ns) {
    return GUTTER + ((ns - this.view.from) / (this.view.to - this.view.from)) * (this.width - GUTTER);
  }

  ns(x) {
    return this.view.from + ((x - GUTTER) / (this.width - GUTTER)) * (this.view.to - this.view.from);
  }

  y(row, lane = 0) {
    return AXIS + (row * this.rowPx - this.topPx + lane * this.lanePx) / this.scale;
  }

  get lanePx() {
    return Math.max(1, Math.floor((this.rowPx - (this.rowPx > 4 ? 1 : 0)) / this.run.numLanes));
  }

  rowAt(y) {
    return Math.floor(((y - AXIS) * this.scale + this.topPx) / this.rowPx);
  }

  draw() {
    const { context, run } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    this.topPx = Math.max(0, Math.min(this.topPx, run.sms.length * this.rowPx - this.plotHeight));
    this.rasterise();
    context.fillStyle = this.panel;
    context.fillRect(0, 0, this.bars.width, this.bars.height);
    context.putImageData(this.image, this.bars.width - this.plotWidth, Math.round(AXIS * this.scale));
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    this.drawAxis();
    this.drawRows();
    this.drawLabels();
    this.drawSelected();
    this.drawOverview();
  }

  // Each visible lane is a line of pixels, repeated for its height. In low rows, lanes would look like stripes.
  rasterise() {
    const { run, pixels, plotWidth, plotHeight, rowPx, lanePx } = this;
    const shades = shadesOf(this.view.byOp ? this.opColours : run.view.op_names.map(() => this.phaseColours), this.idle);
    const empty = word(this.idle), isWhole = lanePx / this.scale < MIN_OUTLINED, gap = rowPx > 4 ? 1 : 0;
    pixels.fill(empty);
    const first = Math.max(0, Math.floor(this.topPx / rowPx));
    const last = Math.min(run.sms.length, Math.ceil((this.topPx + plotHeight) / rowPx));
    for (let row = first; row < last; row += 1) {
      const top = row * rowPx - this.topPx, bottom = Math.min(plotHeight, top + rowPx - gap);
      const lines = this.raster.draw(run, row, this.view, shades, empty, isWhole);
      lines.forEach((line, lane) => {
        const isLast = isWhole && lane === lines.length - 1;
        const end = isLast ? bottom : Math.min(bottom, top + (lane + 1) * lanePx);
        for (let y = Math.max(0, top + lane * lanePx); y < end; y += 1) pixels.set(line, y * plotWidth);
      });
    }
  }

  drawAxis() {
    const { context, view } = this;
    const span = view.to - view.from;
    const raw = span / Math.max(2, Math.floor((this.width - GUTTER) / 90));
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = this.quiet;
    context.strokeStyle = this.line;
    context.textAlign = "center";
    for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
      const x = this.x(at);
      const digits = Math.max(0, Math.min(3, 3 - Math.floor(Math.log10(step))));
      context.textAlign = x > this.width - 30 ? "right" : "center";
      context.fillText(`${NUMBERS[digits].format(at / 1000)} µs`, Math.min(x, this.width - 2), 13);
      context.beginPath();
      context.moveTo(x, AXIS - 5);
      context.lineTo(x, AXIS);
      context.stroke();
    }
  }

  drawRows() {
    const { context, run } = this;
    context.fillStyle = this.quiet;
    context.textAlign = "right";
    const every = Math.max(1, Math.ceil((13 * this.scale) / this.rowPx));
    for (let row = 0; row < run.sms.length; row += 1) {
      const y = this.y(row);
      if (y < AXIS - 2 || y > this.height) continue;
      if (row % every === 0) context.fillText(`SM ${run.sms[row]}`, GUTTER - 5, y + Math.min(11, this.rowPx / this.scale / 2 + 4));
    }
    if (document.activeElement === this.bars) {
      context.strokeStyle = this.ink;
      context.strokeRect(GUTTER - 0.5, this.y(this.cursorRow) - 0.5, this.width - GUTTER, this.rowPx / this.scale);
    }
  }

  // Names of tiles, if there is space.
  drawLabels() {
    const { context, run, view } = this;
    const height = this.lanePx / this.scale;
    if (height < 12) return;
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "left";
    context.fillStyle = this.panel;
    for (let row = Math.max(0, this.rowAt(AXIS)); row < run.sms.length && this.y(row) < this.height; row += 1) {
      run.lanes[row].forEach((tasks, lane) => {
        for (let at = run.firstAfter(tasks, view.from); at < tasks.length && run.taken[tasks[at]] < view.to; at += 1) {
          const task = tasks[at];
          const begin = Math.max(GUTTER, this.x(run.loaded[task]));
          const room = this.x(run.computed[task]) - begin;
          const text = run.name(task);
          if (room > 26 && room > context.measureText(text).width + 6) context.fillText(text, begin + 3, this.y(row, lane) + height / 2 + 4);
        }
      });
    }
  }

  outline(task, style, width) {
    const { context, run } = this;
    const y = this.y(run.rowOfSm.get(run.sm[task]), run.laneOf[task]);
    const [x1, x2] = [Math.max(GUTTER, this.x(run.taken[task])), this.x(run.stored[task])];
    if (x2 < GUTTER || x1 > this.width || y < AXIS - 40 || y > this.height) return null;
    context.strokeStyle = style;
    context.lineWidth = width;
    context.strokeRect(x1, y, Math.max(2, x2 - x1), Math.max(2, this.lanePx / this.scale));
    return [x1, x2, y + this.lanePx / this.scale / 2];
  }

  // The selected task, the tasks it waited for, and a line from the one that finished last.
  drawSelected() {
    if (this.selected < 0) return;
    const { context, run } = this;
    context.save();
    context.beginPath();
    context.rect(GUTTER, AXIS, this.width - GUTTER, this.height - AXIS);
    context.clip();
    // In low rows, or with very many of them, outlines would hide the bars.
    const isRoomy = this.lanePx / this.scale >= MIN_OUTLINED && this.awaited.length <= MAX_OUTLINES;
    for (const task of isRoomy ? this.awaited : this.awaited.filter((one) => one === this.last)) this.outline(task, this.ink, 1);
    this.outline(this.selected, this.mark, 2.5);
    const last = this.last;
    if (last >= 0) {
      const half = this.lanePx / this.scale / 2;
      const from = [this.x(run.stored[last]), this.y(run.rowOfSm.get(run.sm[last]), run.laneOf[last]) + half];
      const to = [this.x(run.ready[this.selected]), this.y(run.rowOfSm.get(run.sm[this.selected]), run.laneOf[this.selected]) + half];
      context.strokeStyle = this.mark;
      context.lineWidth = 1.5;
      context.setLineDash([5, 3]);
      context.beginPath();
      context.moveTo(...from);
      context.bezierCurveTo(from[0] + 30, from[1], to[0] - 30, to[1], ...to);
      context.stroke();
    }
    context.restore();
  }

  // The whole run: the number of SMs in each phase, and the visible part.
  drawOverview() {
    const context = this.overview.getContext("2d");
    const width = this.overview.width - Math.round(GUTTER * this.scale);
    const height = this.overview.height;
    this.shades ??= this.drawLoad(width, height);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = this.panel;
    context.fillRect(0, 0, this.overview.width, height);
    context.drawImage(this.shades, this.overview.width - width, 0);
    const left = this.overview.width - width;
    const share = (ns) => left + (ns / this.run.endNs) * width;
    const [from, to] = [share(this.view.from), share(this.view.to)];
    context.globalAlpha = 0.72;
    context.fillRect(left, 0, from - left, height);
    context.fillRect(to, 0, this.overview.width - to, height);
    context.globalAlpha = 1;
    context.strokeStyle = this.ink;
    context.strokeRect(from + 0.5, 0.5, Math.max(1, to - from - 1), height - 1);
  }

  drawLoad(width, height) {
    const canvas = document.createElement("canvas");
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d");
    const bins = this.run.load(Math.max(1, width >> 1));
    context.fillStyle = css(this.idle);
    context.fillRect(0, 0, width, height);
    for (let bin = 0; bin < bins[0].length; bin += 1) {
      let y = height;
      for (const phase of [2, 1, 3, 0]) {
        const own = (bins[phase][bin] / this.run.sms.length) * height;
        context.fillStyle = css(this.phaseColours[phase]);
        context.fillRect(bin * 2, y - own, 2, own);
        y -= own;
      }
    }
    return canvas;
  }

  select(task, { reveal = true } = {}) {
    const { run, view } = this;
    this.selected = task;
    this.awaited = task < 0 ? [] : run.awaited(task);
    this.last = this.awaited.reduce((last, one) => (last < 0 || run.stored[one] > run.stored[last] ? one : last), -1);
    if (task >= 0) {
      this.cursorRow = run.rowOfSm.get(run.sm[task]);
      if (reveal) {
        const middle = (run.taken[task] + run.stored[task]) / 2;
        if (run.taken[task] < view.from || run.stored[task] > view.to) view.show(middle - (view.to - view.from) / 2, middle + (view.to - view.from) / 2);
        this.revealRow(this.cursorRow);
      }
    }
    this.onSelect(this);
    this.dirty();
  }

  revealRow(row) {
    const y = row * this.rowPx;
    if (y < this.topPx) this.topPx = y;
    if (y + this.rowPx > this.topPx + this.plotHeight) this.topPx = y + this.rowPx - this.plotHeight;
  }

  grow(factor) {
    const middle = this.selected < 0 ? (this.topPx + this.plotHeight / 2) / this.rowPx : this.cursorRow + 0.5;
    this.rowPx = Math.round(Math.min(64 * this.scale, Math.max(this.fitRow, this.rowPx * factor + Math.sign(factor - 1))));
    this.topPx = Math.round(middle * this.rowPx - this.plotHeight / 2);
    this.dirty();
  }

  fit() {
    this.rowPx = this.fitRow;
    this.topPx = 0;
    this.view.show(0, this.view.endNs);
  }
}
