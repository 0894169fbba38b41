// The page of a trial: its Gantt charts, their tables, and the buttons that request a trace or counters.
"use strict";

import { Run } from "./gantt/data.js";
import { Chart } from "./gantt/gantt.js";
import { View } from "./gantt/view.js";
import { listen } from "./gantt/input.js";

const section = document.getElementById("gantt");
const micro = (ns) => `${(ns / 1000).toLocaleString("en", { maximumFractionDigits: 2 })} µs`;

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Details of the selected task.
function tell(chart) {
  const { run, selected: task } = chart;
  for (const other of chart.view.charts) if (other !== chart && other.selected >= 0 && task >= 0) { other.selected = -1; other.awaited = []; other.dirty(); }
  const place = document.getElementById("gantt-task");
  place.replaceChildren();
  if (task < 0) return;
  const facts = [
    ["Task", `${task}, ${run.name(task)}`],
    ["Where", `SM ${run.sm[task]}, CTA ${run.cta[task]}${run.view.num_ctas.length > 1 ? `, launch ${run.launch[task]}` : ""}`],
    ["Taken at", micro(run.taken[task])],
    ["Waited", micro(run.ready[task] - run.taken[task])],
    ["Loaded", micro(run.loaded[task] - run.ready[task])],
    ["Computed", micro(run.computed[task] - run.loaded[task])],
    ["Stored", micro(run.stored[task] - run.computed[task])],
  ];
  if (chart.awaited.length) facts.push(["Waited for", `${chart.awaited.length} tasks; last ${run.name(chart.last)} on SM ${run.sm[chart.last]}, stored at ${micro(run.stored[chart.last])}`]);
  const list = element("dl", "");
  for (const [name, value] of facts) {
    const pair = element("div", "");
    pair.append(element("dt", name), element("dd", value));
    list.append(pair);
  }
  place.append(list);
  if (chart.last >= 0) {
    const follow = element("button", `Go to ${run.name(chart.last)}`, { type: "button" });
    follow.addEventListener("click", () => { chart.select(chart.last); chart.bars.focus(); });
    place.append(follow);
  }
}

async function load(figure) {
  const answer = await fetch(`${section.dataset.gantt}?of=${figure.dataset.of}`, { headers: { accept: "application/json" } });
  const body = await answer.json();
  if (!answer.ok) {
    figure.append(element("p", body.detail, { class: "empty" }));
    return null;
  }
  const run = new Run(body);
  figure.querySelector("[data-summary]").textContent = `${micro(body.makespan_ns)}, ${run.numTasks.toLocaleString("en")} tasks on ${run.sms.length} SMs`;
  return { figure, run };
}

async function addTables(figure) {
  const details = element("details", "");
  details.append(element("summary", "As tables"));
  const place = element("div", "");
  details.append(place);
  figure.append(details);
  details.addEventListener("toggle", async () => {
    if (!details.open || place.childElementCount) return;
    const answer = await fetch(`${section.dataset.tables}?of=${figure.dataset.of}`, { headers: { accept: "text/html" } });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const tables = fresh.getElementById("tables");
    for (const heading of tables?.querySelectorAll("h2") ?? []) heading.replaceWith(element("h3", heading.textContent));
    if (tables) place.replaceChildren(...tables.childNodes);
  });
}

function addTools(view) {
  const focus = () => view.charts[0];
  const buttons = {
    "gantt-in": () => view.zoom(0.6), "gantt-out": () => view.zoom(1 / 0.6),
    "gantt-left": () => view.pan(-0.25), "gantt-right": () => view.pan(0.25),
    "gantt-fit": () => view.charts.forEach((chart) => chart.fit()),
    "gantt-low": () => view.charts.forEach((chart) => chart.grow(0.7)),
    "gantt-high": () => view.charts.forEach((chart) => chart.grow(1.4)),
  };
  for (const [id, act] of Object.entries(buttons)) document.getElementById(id).addEventListener("click", act);
  const legend = document.getElementById("gantt-legend");
  const phases = [...legend.children];
  document.getElementById("gantt-colour").addEventListener("change", (event) => {
    view.byOp = event.target.value === "op";
    const names = focus()?.run.view.op_names ?? [];
    const ops = names.map((name, op) => {
      const item = element("li", "");
      item.append(element("span", "", { class: `key op${op % 8}` }), name);
      return item;
    });
    legend.replaceChildren(...(view.byOp ? [...ops, phases[0], phases.at(-1)] : phases));
    view.changed();
  });
  document.getElementById("gantt-tools").hidden = false;
  document.getElementById("gantt-help").hidden = false;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view.charts.forEach((chart) => chart.paint()));
}

async function drawAll() {
  const figures = [...section.querySelectorAll("figure.gantt")];
  for (const figure of figures) figure.classList.toggle("both", figures.length > 1);
  const view = new View(1);
  for (const figure of figures) {
    const found = await load(figure);
    if (!found) continue;
    const isFirst = !view.charts.length;
    view.endNs = Math.max(view.endNs, found.run.endNs);
    const chart = new Chart(figure, found.run, view, tell);
    listen(chart);
    addTables(figure);
    if (isFirst) addTools(view);
    view.show(0, view.endNs);
  }
}

// Requests a trace or counters, and reloads the page when they are ready.
async function waitFor(href) {
  for (;;) {
    const answer = await fetch(href, { headers: { accept: "application/json" } });
    if (answer.status !== 202) break;
    await new Promise((resolve) => { setTimeout(resolve, 700); });
  }
  location.reload();
}

for (const button of document.querySelectorAll("[data-ask]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    button.disabled = true;
    const csrf = document.querySelector("meta[name=csrf]")?.content;
    const answer = await fetch(button.dataset.ask, { method: "POST", headers: { ...(button.dataset.ask.endsWith("counters") ? { "content-type": "application/json" } : {}), ...(csrf ? { "x-csrf-token": csrf } : {}) }, body: button.dataset.ask.endsWith("counters") ? "{}" : undefined });
    const body = await answer.json();
    if (answer.ok) {
      button.textContent = "It is being collected";
      waitFor(button.dataset.ask);
    } else {
      button.after(element("span", ` ${body.detail}`, { class: "reason", role: "alert" }));
    }
  });
}
for (const waiting of document.querySelectorAll("[data-wait]")) waitFor(waiting.dataset.wait);

if (section) drawAll();
