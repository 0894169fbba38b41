// The order explorer without reloads: links and forms lead to pages of the server, and this script inserts their parts
// into the current page. All numbers come from the server, and without this script the links load whole pages.
"use strict";

const PARTS = ["explorer", "grid", "as-json"];
let timer = null;
let asked = 0;

async function show(href, { push = true, focus = null } = {}) {
  const mine = ++asked;
  const answer = await fetch(href, { headers: { accept: "text/html" } });
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (mine !== asked) return;
  if (!answer.ok || !fresh.getElementById("explorer")) {
    location.assign(href);
    return;
  }
  const scrolled = document.querySelector("#board-panel .scroll")?.scrollLeft ?? 0;
  for (const id of PARTS) {
    const old = document.getElementById(id);
    const next = fresh.getElementById(id);
    if (old && next) old.replaceWith(document.adoptNode(next));
  }
  if (push) history.pushState(null, "", href);
  awaken();
  document.querySelector("#board-panel .scroll").scrollLeft = scrolled;
  if (focus) refocus(focus);
}

function refocus(id) {
  const there = document.getElementById(id);
  const target = there?.matches("a, button, input, select") ? there : document.querySelector("#board-panel a.cell.now, #next[href], #back[href]");
  target?.focus({ preventScroll: true });
}

// Shows controls that need this script.
function awaken() {
  for (const node of document.querySelectorAll("#play, .speed, .keys")) node.hidden = false;
  const play = document.getElementById("play");
  play.setAttribute("aria-pressed", String(timer !== null));
  play.textContent = timer === null ? "▶ Play" : "❚❚ Pause";
  document.getElementById("speed").value = speed;
}

let speed = 3;

function stop() {
  clearTimeout(timer);
  timer = null;
  awaken();
}

async function advance() {
  const next = document.querySelector("#next[href]");
  if (!next) {
    stop();
    return;
  }
  const focused = document.activeElement?.id;
  await show(next.href, { push: false, focus: focused || null });
  if (timer !== null) timer = setTimeout(advance, 1000 / speed);
}

function play() {
  if (timer !== null) {
    stop();
    return;
  }
  timer = setTimeout(advance, 0);
  const first = document.querySelector("#first[href]");
  if (!document.querySelector("#next[href]") && first) show(first.href, { push: false, focus: "play" });
  awaken();
}

document.addEventListener("click", (event) => {
  if (event.target.closest("#play")) {
    play();
    return;
  }
  const link = event.target.closest("a[data-swap]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  if (timer !== null) stop();
  show(link.href?.baseVal ?? link.href, { focus: link.id });
});

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-swap]")) return;
  event.preventDefault();
  if (timer !== null) stop();
  const query = new URLSearchParams(new FormData(event.target));
  if (query.get("order") !== "drawn") query.set("step", "0");
  show(`${event.target.getAttribute("action")}?${query}`, { focus: event.submitter?.id });
});

document.addEventListener("input", (event) => {
  if (event.target.id === "speed") speed = Number(event.target.value);
});

// Arrow keys move the focus between tiles; single letters press the buttons.
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function neighbour(id, [down, right]) {
  const found = /^tile-(b?)(\d+)\.(\d+)$/.exec(id ?? "");
  if (!found) return null;
  let [row, col, op] = [Number(found[2]), Number(found[3]), found[1]];
  for (let steps = 0; steps < 8; steps += 1) {
    row += down;
    col += right;
    const there = document.getElementById(`tile-${op}${row}.${col}`);
    if (there) return there;
  }
  if (!right) return null;
  const other = op ? "" : "b"; // past the edge, into the other product
  const cells = [...document.querySelectorAll(`[id^="tile-${other}${Number(found[2])}."]`)];
  return right > 0 && !op ? cells[0] : right < 0 && op ? cells.at(-1) : null;
}

document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (STEPS[event.key] && event.target.id?.startsWith("tile-")) {
    event.preventDefault();
    neighbour(event.target.id, STEPS[event.key])?.focus();
    return;
  }
  if (event.key === "p") play();
  const link = [...document.querySelectorAll("a[data-key]")].find((one) => one.dataset.key === event.key);
  if (link) {
    event.preventDefault();
    link.click();
  }
});

addEventListener("popstate", () => show(location.href, { push: false }));
awaken();
