// Bars as pixels, a line for each lane of an SM. If several bars share a pixel, it has the colour of the phase with the
// most time.
"use strict";

// Shades of a pixel by its covered share.
const STEPS = 33;

export const word = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

// For each op and phase: its colour over the idle colour, in steps of the covered share.
export function shadesOf(table, idle) {
  const found = new Uint32Array(table.length * 4 * STEPS);
  table.flat().forEach((own, kind) => {
    for (let step = 0; step < STEPS; step += 1) {
      const share = step / (STEPS - 1);
      found[kind * STEPS + step] = word(own.map((part, at) => Math.round(part * share + idle[at] * (1 - share))));
    }
  });
  return found;
}

export class Raster {
  constructor(width, numLanes) {
    this.width = width;
    this.lines = Array.from({ length: numLanes }, () => new Uint32Array(width));
    this.most = new Float32Array(width);
    this.total = new Float32Array(width);
    this.kind = new Uint8Array(width);
  }

  // The lines of an SM's lanes. With `isWhole`, a task without simultaneous ones fills all of them.
  draw(run, row, view, shades, empty, isWhole) {
    this.lines.forEach((line, lane) => this.fill(line, run, run.lanes[row][lane] ?? [], view, shades, empty));
    if (isWhole && this.lines.length > 1) this.widen(empty);
    return this.lines;
  }

  widen(empty) {
    for (let x = 0; x < this.width; x += 1) {
      let [count, pixel] = [0, empty];
      for (const line of this.lines) {
        if (line[x] === empty) continue;
        count += 1;
        pixel = line[x];
      }
      if (count === 1) for (const line of this.lines) line[x] = pixel;
    }
  }

  // One line: the covered share of each pixel, and the phase that covers most of it. Tasks of a lane never overlap.
  fill(line, run, tasks, view, shades, empty) {
    const { most, total, kind, width } = this;
    const { taken, times, op } = run;
    const scale = width / (view.to - view.from);
    let at = run.firstAfter(tasks, view.from);
    if (at >= tasks.length || taken[tasks[at]] >= view.to) {
      line.fill(empty);
      return;
    }
    most.fill(0);
    total.fill(0);
    const cover = (x, covered, own) => {
      total[x] += covered;
      if (covered > most[x]) {
        most[x] = covered;
        kind[x] = own;
      }
    };
    for (; at < tasks.length && taken[tasks[at]] < view.to; at += 1) {
      const task = tasks[at];
      const base = op[task] * 4;
      for (let phase = 0; phase < 4; phase += 1) {
        const begin = Math.max(0, (times[phase][task] - view.from) * scale);
        const end = Math.min(width, (times[phase + 1][task] - view.from) * scale);
        if (end <= begin) continue;
        const first = begin | 0;
        const last = end | 0;
        if (first === last) {
          cover(first, end - begin, base + phase);
          continue;
        }
        cover(first, first + 1 - begin, base + phase);
        if (last > first + 1) {
          total.fill(1, first + 1, last);
          kind.fill(base + phase, first + 1, last);
        }
        if (end > last) cover(last, end - last, base + phase);
      }
    }
    for (let x = 0; x < width; x += 1) {
      const share = total[x];
      line[x] = share > 0 ? shades[kind[x] * STEPS + Math.round(Math.min(1, share) * (STEPS - 1))] : empty;
    }
  }
}
