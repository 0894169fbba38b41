// Mouse, wheel and keys of a Gantt chart.
"use strict";

export function listen(chart) {
  const { bars, overview, view, run } = chart;
  let drag = null;

  bars.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, from: view.from, to: view.to, top: chart.topPx, moved: false };
    bars.setPointerCapture(event.pointerId);
  });
  bars.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    drag.moved = true;
    bars.classList.add("dragging");
    const by = (dx / (chart.width - 46)) * (drag.to - drag.from);
    chart.topPx = drag.top - dy * chart.scale;
    view.show(drag.from - by, drag.to - by);
  });
  bars.addEventListener("pointerup", (event) => {
    bars.classList.remove("dragging");
    const wasDrag = drag?.moved;
    drag = null;
    if (wasDrag) return;
    const box = bars.getBoundingClientRect();
    const row = chart.rowAt(event.clientY - box.top);
    const lane = Math.floor(((event.clientY - box.top - chart.y(row)) * chart.scale) / chart.lanePx);
    const ns = chart.ns(event.clientX - box.left);
    const lanes = [lane, ...(run.lanes[row] ?? []).keys()];
    chart.select(lanes.map((one) => run.at(row, one, ns)).find((task) => task >= 0) ?? -1, { reveal: false });
  });
  bars.addEventListener("pointercancel", () => { drag = null; });

  bars.addEventListener("wheel", (event) => {
    const box = bars.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      view.zoom(1.2 ** Math.sign(event.deltaY), chart.ns(event.clientX - box.left));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      view.pan(0.1 * Math.sign(event.deltaX || event.deltaY));
    } else if (chart.rowPx > chart.fitRow) {
      event.preventDefault();
      chart.topPx += event.deltaY;
      chart.dirty();
    }
  }, { passive: false });

  let brush = null;
  const at = (event) => {
    const box = overview.getBoundingClientRect();
    return Math.max(0, Math.min(1, (event.clientX - box.left - 46) / (box.width - 46))) * run.endNs;
  };
  overview.addEventListener("pointerdown", (event) => {
    brush = at(event);
    overview.setPointerCapture(event.pointerId);
  });
  overview.addEventListener("pointermove", (event) => {
    if (brush !== null && Math.abs(at(event) - brush) > run.endNs / 200) view.show(Math.min(brush, at(event)), Math.max(brush, at(event)));
  });
  overview.addEventListener("pointerup", (event) => {
    if (brush !== null && Math.abs(at(event) - brush) <= run.endNs / 200) {
      const half = (view.to - view.from) / 2;
      view.show(brush - half, brush + half);
    }
    brush = null;
  });

  const moveRow = (by) => {
    chart.cursorRow = Math.max(0, Math.min(run.sms.length - 1, chart.cursorRow + by));
    chart.revealRow(chart.cursorRow);
    const middle = (view.from + view.to) / 2;
    const tasks = run.ofRow(chart.cursorRow);
    const near = tasks.find((task) => run.stored[task] > middle) ?? tasks.at(-1);
    chart.select(near ?? -1, { reveal: false });
  };
  const step = (by) => {
    const tasks = run.ofRow(chart.cursorRow);
    const place = tasks.indexOf(chart.selected);
    const next = place < 0 ? tasks.find((task) => run.stored[task] > view.from) : tasks[place + by];
    if (next !== undefined) chart.select(next);
  };
  const keys = {
    w: () => view.zoom(0.7), "+": () => view.zoom(0.7), "=": () => view.zoom(0.7),
    s: () => view.zoom(1 / 0.7), "-": () => view.zoom(1 / 0.7),
    a: () => view.pan(-0.15), ArrowLeft: () => view.pan(-0.15),
    d: () => view.pan(0.15), ArrowRight: () => view.pan(0.15),
    ArrowUp: () => moveRow(-1), ArrowDown: () => moveRow(1),
    n: () => step(1), p: () => step(-1), Enter: () => step(1),
    f: () => { if (chart.last >= 0) chart.select(chart.last); },
    "[": () => chart.grow(0.7), "]": () => chart.grow(1.4),
    0: () => chart.fit(), Home: () => chart.fit(), Escape: () => chart.select(-1),
  };
  bars.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = keys[event.key] ?? keys[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    act();
  });
  bars.addEventListener("focus", () => chart.dirty());
  bars.addEventListener("blur", () => chart.dirty());
}
