// Keeps the page up to date: when the job's event stream reports a change, it requests the page again, at most once a
// second or at the page's own interval, and replaces the parts whose id starts with "live".
"use strict";

const live = document.getElementById("live");
let timer = null;
// Whether the server has refused the stream. Then the page polls as long as something may change.
let isRefused = false;
const WITHOUT_STREAM_MS = 5000;

async function refresh() {
  timer = null;
  try {
    const response = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (response.ok) show(new DOMParser().parseFromString(await response.text(), "text/html"));
  } finally {
    poll();
  }
}

// Unchanged parts are kept; the focus and checked boxes are restored.
function show(fresh) {
  for (const node of document.querySelectorAll("[id^=live]")) {
    const other = fresh.getElementById(node.id);
    if (!other || other.innerHTML === node.innerHTML) continue;
    const at = focusables(node).indexOf(document.activeElement);
    const ticked = new Set([...node.querySelectorAll("input:checked")].map(named));
    node.replaceChildren(...other.childNodes);
    for (const box of node.querySelectorAll("input[type=checkbox]")) box.checked ||= ticked.has(named(box));
    if (at >= 0) focusables(node)[at]?.focus();
  }
  const before = live.dataset.events;
  live.dataset.everyMs = fresh.getElementById("live").dataset.everyMs ?? "";
  live.dataset.events = fresh.getElementById("live").dataset.events ?? "";
  document.dispatchEvent(new Event("tuner:fresh"));
  if (before && !live.dataset.events) document.dispatchEvent(new Event("tuner:ended"));
}

function named(box) {
  return `${box.name} ${box.value}`;
}

function focusables(node) {
  return [...node.querySelectorAll("a[href], button, input, select, summary, [tabindex]")];
}

// Without a stream, the page says how often to poll.
function poll() {
  const everyMs = live?.dataset.everyMs || (isRefused && live.dataset.events && WITHOUT_STREAM_MS);
  if (everyMs) timer ??= setTimeout(refresh, Number(everyMs));
}

if (live?.dataset.events) {
  const stream = new EventSource(live.dataset.events);
  const soon = () => { timer ??= setTimeout(refresh, 1000); };
  for (const kind of ["state", "priors", "trial", "best"]) stream.addEventListener(kind, soon);
  stream.addEventListener("end", () => { stream.close(); soon(); });
  stream.addEventListener("error", () => { isRefused = stream.readyState === EventSource.CLOSED; poll(); });
} else {
  poll();
}

// An empty field is not a filter, so it is left out of the address.
for (const form of document.querySelectorAll("form.filters")) {
  form.addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
  });
}
