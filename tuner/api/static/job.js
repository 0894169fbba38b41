// The charts of a job's page, drawn from the page's JSON, and again after new trials.
import { axis, chart, idle, inView, loadFor, zoom } from "./charts.js";

const place = document.getElementById("points");
const job = place.dataset.job;
const options = document.getElementById("curve-options");
const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const us = (value) => (value == null ? "–" : `${number.format(value)} µs`);
let points = null;

async function ask(path) {
  const response = await fetch(`${job}/${path}`);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

// Our best so far, by number or by seconds. It is chosen by speed-up, since the library's time drifts.
function steps(over) {
  const library = points.plan_kinds.indexOf("library"), found = [];
  let best = 0, last = null;
  for (let i = 0; i < points.number.length; i++) {
    const speedup = points.speedup[i];
    if (speedup == null || points.plan_kind[i] === library || speedup <= best) continue;
    best = speedup;
    last = points.time_us[i];
    found.push([points[over][i], last]);
  }
  if (found.length) found.push([points[over].at(-1), last]);
  return found;
}

// Slow outliers would compress the rest: by default, the axis ends at the 95th percentile.
function longest(all) {
  const times = points.time_us.filter((time) => time != null).sort((a, b) => a - b);
  if (!times.length) return undefined;
  return all ? times.at(-1) * 1.02 : Math.max(times[Math.floor(0.95 * (times.length - 1))], (points.library_us ?? 0) * 1.02);
}

function curve(c) {
  const over = options.querySelector("[name=over]:checked").value, all = options.querySelector("[name=all]").checked;
  const top = longest(all), series = points.plan_kinds.map((kind) => ({
    name: kind.replaceAll("_", " "), type: "scatter", symbolSize: 7, data: [], cursor: "pointer",
    // Many points are drawn, and found under the pointer, as one object.
    itemStyle: { opacity: 0.75 }, large: points.number.length > 2000, largeThreshold: 1, progressive: 0,
  }));
  const lost = { name: "not measured", type: "scatter", symbol: "triangle", symbolSize: 6, data: [],
    itemStyle: { color: c.c8, opacity: 0.6 }, large: points.number.length > 2000, largeThreshold: 1, progressive: 0 };
  points.number.forEach((trial, i) => {
    const time = points.time_us[i], x = points[over][i];
    if (time == null) lost.data.push([x, top, trial, points.outcome[i]]);
    else if (time <= top) series[points.plan_kind[i]].data.push([x, time, trial, points.outcome[i]]);
  });
  const best = { name: "best so far", type: "line", step: "end", showSymbol: false, data: steps(over), z: 5,
    lineStyle: { width: 2, color: c.ink }, itemStyle: { color: c.ink }, tooltip: { show: false } };
  if (points.library_us) {
    best.markLine = { silent: true, symbol: "none", lineStyle: { color: c.quiet, type: "dashed" },
      label: { formatter: "library", color: c.quiet, position: "insideEndTop" }, data: [{ yAxis: points.library_us }] };
  }
  return {
    xAxis: axis(c, over === "number" ? "trial" : "seconds", { type: "value", min: 0, max: "dataMax" }),
    yAxis: axis(c, "µs", { type: "value", scale: true, max: top, nameGap: 42, axisLabel: { color: c.quiet, showMaxLabel: false } }),
    grid: { left: 16, right: 16, top: 44, bottom: 62, containLabel: true },
    dataZoom: zoom(c).map((one) => ({ ...one, showDataShadow: points.number.length <= 2000 })),
    tooltip: { trigger: "item", renderMode: "richText", confine: true, backgroundColor: c.panel, borderColor: c.line,
      textStyle: { color: c.ink }, formatter: ({ seriesName, data }) =>
        `trial ${data[2]}: ${points.outcomes[data[3]] === "measured" ? us(data[1]) : points.outcomes[data[3]].replaceAll("_", " ")}\n${seriesName}` },
    legend: { type: "scroll", top: 0, left: 0, icon: "circle", itemWidth: 10, itemHeight: 10, textStyle: { color: c.ink },
      pageTextStyle: { color: c.quiet }, pageIconColor: c.accent, inactiveColor: c.line },
    series: [...series, lost, best],
  };
}

const STAGES = { verify: "proof", render: "source", build: "build", launch: "launch", check: "check", time: "timing" };

// Builds run ahead of the card, several at a time; the card's own seconds are next to them.
function stages(c) {
  const rows = Object.entries(points.stage_s).filter(([, seconds]) => seconds > 0);
  const named = rows.map(([stage, seconds]) => [STAGES[stage] ?? stage.replaceAll("_", " "), seconds]);
  if (points.card_s != null) {
    const busy = Math.min(points.card_s, points.search_s);
    named.push(["card busy", busy], ["card waits", Math.max(0, points.search_s - busy)]);
  }
  const isCard = (name) => name.startsWith("card");
  return {
    grid: { left: 8, right: 56, top: 8, bottom: 8, containLabel: true }, legend: { show: false },
    xAxis: axis(c, "", { type: "value", axisLabel: { show: false }, splitLine: { show: false } }),
    yAxis: axis(c, "", { type: "category", inverse: true, data: named.map(([name]) => name),
      axisLabel: { color: c.ink }, axisTick: { show: false } }),
    series: [{ type: "bar", barMaxWidth: 18, data: named.map(([name, seconds]) => ({ value: seconds,
      itemStyle: { color: isCard(name) ? c.c2 : c.c1, borderRadius: 2 } })),
      label: { show: true, position: "right", color: c.ink, formatter: ({ value }) => `${number.format(value)} s` } }],
  };
}

function shares(c, axes) {
  const rows = Object.entries(axes.shares).slice(0, 12);
  return {
    grid: { left: 8, right: 56, top: 8, bottom: 8, containLabel: true }, legend: { show: false },
    xAxis: axis(c, "", { type: "value", axisLabel: { show: false }, splitLine: { show: false } }),
    yAxis: axis(c, "", { type: "category", inverse: true, data: rows.map(([name]) => name.replaceAll("_", " ")),
      axisLabel: { color: c.ink }, axisTick: { show: false } }),
    series: [{ type: "bar", barMaxWidth: 18, data: rows.map(([, share]) => share), itemStyle: { borderRadius: 2 },
      label: { show: true, position: "right", color: c.ink, formatter: ({ value }) => `${Math.round(100 * value)} %` } }],
  };
}

// A few trials are far slower than the rest, so the colours cover only the rest.
function lines(c, axes) {
  const names = Object.keys(axes.values).slice(0, place.clientWidth < 600 ? 4 : 7);
  const columns = names.map((name) => axes.values[name]);
  const dims = names.map((name, i) => {
    const values = [...new Set(columns[i].filter((value) => value != null))];
    const isNumber = values.every((value) => typeof value === "number");
    const sorted = values.sort(isNumber ? (a, b) => a - b : undefined).map(String);
    return { dim: i, name: name.replaceAll("_", " "), type: "category", data: sorted };
  });
  dims.push({ dim: names.length, name: "speed-up", type: "value", scale: true, min: Math.min(...axes.speedup),
    axisLabel: { showMinLabel: false, color: c.quiet, fontSize: 10 } });
  const rows = axes.speedup.map((speedup, i) => [...columns.map((column) => String(column[i] ?? "")), speedup]);
  const sorted = [...axes.speedup].sort((a, b) => a - b);
  return {
    legend: { show: false },
    parallel: { left: 40, right: 56, top: 56, bottom: 24, parallelAxisDefault: {
      nameLocation: "start", nameGap: 12, nameRotate: 20, nameTruncate: { maxWidth: 110 }, nameTextStyle: { color: c.ink, align: "left" }, inverse: false,
      axisLine: { lineStyle: { color: c.quiet } }, axisTick: { lineStyle: { color: c.quiet } },
      axisLabel: { color: c.quiet, fontSize: 10, formatter: (value) => String(value).replaceAll("_", " ") },
      areaSelectStyle: { borderColor: c.accent, color: c.accent, opacity: 0.3 },
    } },
    parallelAxis: dims.map((dim) => ({ ...dim, nameLocation: "end" })),
    visualMap: { show: false, dimension: names.length, min: sorted[Math.floor(sorted.length / 10)], max: sorted.at(-1),
      inRange: { color: [c.line, c.c1, c.c2] } },
    tooltip: { show: false },
    series: [{ type: "parallel", lineStyle: { width: 1.2, opacity: 0.45 }, inactiveOpacity: 0.04, activeOpacity: 0.9,
      smooth: 0.1, data: rows }],
  };
}

function forecasts(c, pairs) {
  // As above, a few far slower ones would compress the rest.
  const sorted = pairs.map(([, measured]) => measured).sort((a, b) => a - b), most = 1.05 * sorted[Math.floor(0.95 * (sorted.length - 1))];
  const shown = pairs.filter(([forecast, measured]) => forecast <= most && measured <= most);
  const ends = shown.flat(), low = Math.min(...ends), high = Math.max(...ends);
  return {
    grid: { left: 32, right: 16, top: 12, bottom: 40, containLabel: true }, legend: { show: false },
    xAxis: axis(c, "forecast, µs", { type: "value", scale: true }),
    yAxis: axis(c, "measured, µs", { type: "value", scale: true, nameGap: 42 }),
    tooltip: { trigger: "item", renderMode: "richText", backgroundColor: c.panel, borderColor: c.line,
      textStyle: { color: c.ink }, formatter: ({ data }) => `forecast ${us(data[0])}\nmeasured ${us(data[1])}` },
    series: [{ type: "scatter", symbolSize: 5, itemStyle: { opacity: 0.6 }, data: shown, markLine: { silent: true,
      symbol: "none", label: { show: false }, lineStyle: { color: c.quiet, type: "dashed" },
      data: [[{ coord: [low, low] }, { coord: [high, high] }]] } }],
  };
}

// A chart loads its data when it comes into view; if both are visible, the trials' chart comes first.
function later(id, path, draw, done = () => {}) {
  const element = document.getElementById(id);
  if (!element) return;
  const observer = new IntersectionObserver(async (entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    if (inView(place)) await charts[0]?.instance;
    await idle();
    let found = await ask(path);
    const drawn = done(found) === false ? null : chart(element, (c) => draw(c, found));
    document.addEventListener("tuner:ended", async () => {
      found = await ask(path);
      if (done(found) !== false) drawn?.redraw();
    });
  });
  observer.observe(element);
}

function noteAxes(axes) {
  const note = document.getElementById("shares-note");
  const isSample = axes.num_trials < axes.num_measured - 1;
  note.textContent = Object.keys(axes.shares).length
    ? `${axes.method}, over ${axes.num_trials} measured trials of generated kernels${isSample ? ` of ${axes.num_measured}, evenly chosen` : ""}.`
    : `There are too few measured trials for this (${axes.num_trials}).`;
  return Object.keys(axes.shares).length > 0;
}

const isEmpty = () => !points.number.length;
const charts = [];

function drawAll() {
  if (isEmpty() || charts.length) return charts.forEach((one) => one.redraw());
  options.hidden = false;
  const drawn = chart(place, curve);
  drawn.instance.then((one) => one.on("click", ({ data }) => {
    if (data?.[2] != null) location.href = `${job}/trials/${data[2]}`;
  }));
  charts.push(drawn, chart(document.getElementById("stages"), stages));
}

async function refresh() {
  points = await ask("points.json");
  const num = points.number.length;
  document.getElementById("sampled").textContent =
    num < points.num_trials ? `${number.format(num)} of ${number.format(points.num_trials)} trials are drawn: an even sample, plus each that was the best so far.` : "";
  drawAll();
}

options.addEventListener("change", () => charts.forEach((one) => one.redraw()));
document.addEventListener("tuner:fresh", refresh);
loadFor(place);
refresh().then(() => {
  later("shares", "axes.json", shares, noteAxes);
  later("lines", "axes.json", lines, (axes) => Object.keys(axes.shares).length > 0);
  later("forecasts", "forecasts.json", (c, found) => forecasts(c, found.pairs_us));
});
