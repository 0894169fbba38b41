// Charts on a canvas, by ECharts, in the colours of the page. ECharts is loaded when the first chart comes into view,
// so that it does not delay the text.
const ECHARTS = new URL("vendor/echarts-6.1.0.min.js", import.meta.url).href;
const COLOURS = ["paper", "panel", "ink", "quiet", "line", "shade", "accent", "good", "bad", "wait", "sim",
  "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"];
const dark = matchMedia("(prefers-color-scheme: dark)");
const still = matchMedia("(prefers-reduced-motion: reduce)");
let library = null;

/** The colours of the page's scheme, by their names in tuner.css. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Loads ECharts once; returns a promise. */
export function load() {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = ECHARTS;
    script.onload = () => resolve(window.echarts);
    script.onerror = () => reject(new Error(`${ECHARTS} did not load`));
    document.head.append(script);
  });
  return library;
}

/** Common options: fonts, a tooltip without inline styles (forbidden by the page's policy), no animation. */
export function common(c) {
  return {
    animation: false,
    backgroundColor: "transparent",
    color: [c.c1, c.c2, c.c3, c.c4, c.c5, c.c6, c.c7, c.c8],
    textStyle: { color: c.ink, fontFamily: "system-ui, sans-serif", fontSize: 12 },
    grid: { left: 8, right: 16, top: 36, bottom: 56, containLabel: true },
    legend: { top: 0, left: 0, icon: "circle", itemWidth: 10, itemHeight: 10, textStyle: { color: c.ink },
      inactiveColor: c.line },
    tooltip: {
      renderMode: "richText", confine: true, backgroundColor: c.panel, borderColor: c.line, borderWidth: 1,
      padding: 8, textStyle: { color: c.ink, fontSize: 12 },
    },
  };
}

/** An axis in the page's colours; `more` overrides. */
export function axis(c, name, more = {}) {
  return {
    name, nameLocation: "middle", nameGap: 32, nameTextStyle: { color: c.quiet },
    axisLine: { lineStyle: { color: c.line } }, axisTick: { lineStyle: { color: c.line } },
    axisLabel: { color: c.quiet, hideOverlap: true }, splitLine: { lineStyle: { color: c.line, opacity: 0.6 } },
    ...more,
  };
}

/** Zoom by wheel and drag inside a chart, and by a slider below it. */
export function zoom(c) {
  return [
    { type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false, filterMode: "none" },
    { type: "slider", height: 18, bottom: 4, filterMode: "none", borderColor: c.line, backgroundColor: c.shade,
      fillerColor: `${c.accent}33`, handleStyle: { color: c.accent, borderColor: c.accent },
      moveHandleStyle: { color: c.line }, dataBackground: { lineStyle: { color: c.line }, areaStyle: { color: c.line } },
      selectedDataBackground: { lineStyle: { color: c.accent }, areaStyle: { color: c.line } },
      textStyle: { color: c.quiet }, showDetail: false },
  ];
}

/** Loads ECharts once `element` is in view, even while its data is still loading; returns a promise. */
export function loadFor(element) {
  return (inView(element) ? Promise.resolve() : seen(element)).then(load);
}

/** A promise that resolves when the page's thread is idle. */
export function idle() {
  return new Promise((resolve) => { (window.requestIdleCallback ?? setTimeout)(() => resolve()); });
}

/** Whether a part of `element` is visible now. */
export function inView(element) {
  const box = element.getBoundingClientRect();
  return box.bottom > 0 && box.top < innerHeight;
}

/**
 * Draws into `element` what `option(colours, echarts)` returns, once it is visible, and again when the scheme or the
 * size changes. Returns { redraw, instance }: `redraw()` calls `option` again; `instance` is a promise of the chart.
 */
export function chart(element, option) {
  let drawn = null;
  const redraw = () => {
    if (!drawn) return;
    const c = colours();
    drawn.setOption({ ...common(c), ...option(c, window.echarts) }, { notMerge: true });
    element.dataset.drawn = String(Number(element.dataset.drawn ?? 0) + 1);
  };
  const instance = loadFor(element).then((echarts) => {
    drawn = echarts.init(element, null, { renderer: "canvas" });
    redraw();
    dark.addEventListener("change", redraw);
    new ResizeObserver(() => {
      // The observer also reports the initial size, which is drawn already.
      if (element.clientWidth !== drawn.getWidth() || element.clientHeight !== drawn.getHeight()) drawn.resize();
    }).observe(element);
    addKeys(element, drawn);
    return drawn;
  });
  return { redraw, instance };
}

/** Whether the user prefers reduced motion. */
export function isStill() {
  return still.matches;
}

function seen(element) {
  return new Promise((resolve) => {
    const observer = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) {
        observer.disconnect();
        resolve();
      }
    }, { rootMargin: "200px" });
    observer.observe(element);
  });
}

// A zoomable chart can have the focus: + and - zoom about the middle, the arrow keys move, 0 shows everything.
function addKeys(element, drawn) {
  element.addEventListener("keydown", (event) => {
    const range = drawn.getOption().dataZoom?.[0];
    if (!range || event.ctrlKey || event.metaKey || event.altKey) return;
    const { start, end } = range, width = end - start, middle = (start + end) / 2;
    const moves = {
      "+": [middle - width / 4, middle + width / 4], "=": [middle - width / 4, middle + width / 4],
      "-": [middle - width, middle + width], "0": [0, 100],
      ArrowLeft: [start - width / 5, end - width / 5], ArrowRight: [start + width / 5, end + width / 5],
    };
    const to = moves[event.key];
    if (!to) return;
    event.preventDefault();
    const shift = Math.max(0, -to[0]) - Math.max(0, to[1] - 100);
    drawn.dispatchAction({ type: "dataZoom", start: Math.max(0, to[0] + shift), end: Math.min(100, to[1] + shift) });
  });
}
