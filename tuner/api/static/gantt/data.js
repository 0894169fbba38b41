// A run of a candidate, prepared for drawing: the tasks of each SM in order of time, and which task waited for which.
"use strict";

export const PHASES = ["wait", "load", "compute", "store"];

export class Run {
  constructor(view) {
    const tasks = view.tasks;
    this.view = view;
    this.numTasks = tasks.op.length;
    this.endNs = Math.max(1, view.makespan_ns);
    for (const name of Object.keys(tasks)) this[name] = Int32Array.from(tasks[name]);
    this.times = [this.taken, this.ready, this.loaded, this.computed, this.stored];
    this.sms = [...new Set(this.sm)].sort((a, b) => a - b);
    this.rowOfSm = new Map(this.sms.map((sm, row) => [sm, row]));
    this.deal();
  }

  // Tasks of an SM overlap if it works ahead or holds several CTAs: each task goes to the first free lane.
  deal() {
    const order = Int32Array.from(this.op.keys()).sort((a, b) => this.taken[a] - this.taken[b] || a - b);
    const lanes = this.sms.map(() => []);
    const ends = this.sms.map(() => []);
    this.laneOf = new Int32Array(this.numTasks);
    for (const task of order) {
      const row = this.rowOfSm.get(this.sm[task]);
      let lane = ends[row].findIndex((end) => end <= this.taken[task]);
      if (lane < 0) {
        lane = ends[row].length;
        lanes[row].push([]);
      }
      ends[row][lane] = this.stored[task];
      lanes[row][lane].push(task);
      this.laneOf[task] = lane;
    }
    this.lanes = lanes.map((own) => own.map((tasks) => Int32Array.from(tasks)));
    this.numLanes = Math.max(1, ...this.lanes.map((own) => own.length));
  }

  // The first task of a lane that ends after a given time. Lanes have no overlaps, so the ends are sorted.
  firstAfter(lane, ns) {
    let [low, high] = [0, lane.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.stored[lane[middle]] > ns) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  at(row, lane, ns) {
    const tasks = this.lanes[row]?.[lane];
    const task = tasks?.[this.firstAfter(tasks, ns)];
    return task !== undefined && this.taken[task] <= ns ? task : -1;
  }

  // Tasks of an SM by time, over all its lanes.
  ofRow(row) {
    return this.lanes[row].flatMap((tasks) => [...tasks]).sort((a, b) => this.taken[a] - this.taken[b] || a - b);
  }

  awaited(task) {
    const waits = this.view.waits;
    if (!waits) return [];
    const ranges = [];
    for (let wait = waits.first_wait[task]; wait < waits.last_wait[task]; wait += 1) ranges.push([waits.first_signal[wait], waits.last_signal[wait]]);
    if (!ranges.length) return [];
    const found = [];
    for (let other = 0; other < this.numTasks; other += 1) {
      const post = waits.posts[other];
      if (post >= 0 && ranges.some(([low, high]) => low <= post && post < high)) found.push(other);
    }
    return found;
  }

  name(task) {
    return `${this.view.op_names[this.op[task]]} (${this.tile_m[task]}, ${this.tile_n[task]})`;
  }

  // Number of SMs in each phase, in equal bins of the whole run. Simultaneous tasks share their SM.
  load(numBins) {
    const bins = PHASES.map(() => new Float32Array(numBins));
    const own = PHASES.map(() => new Float32Array(numBins));
    for (const tasks of this.lanes) {
      own.forEach((counts) => counts.fill(0));
      for (const task of tasks.flatMap((lane) => [...lane])) this.addTo(own, task, numBins / this.endNs);
      for (let bin = 0; bin < numBins; bin += 1) {
        const total = Math.max(1, own.reduce((sum, counts) => sum + counts[bin], 0));
        own.forEach((counts, phase) => { bins[phase][bin] += counts[bin] / total; });
      }
    }
    return bins;
  }

  addTo(bins, task, scale) {
    for (let phase = 0; phase < PHASES.length; phase += 1) {
      const begin = this.times[phase][task] * scale;
      const end = Math.min(bins[phase].length, this.times[phase + 1][task] * scale);
      for (let bin = Math.floor(begin); bin < end; bin += 1) bins[phase][bin] += Math.min(end, bin + 1) - Math.max(begin, bin);
    }
  }
}
