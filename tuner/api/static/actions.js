// Buttons that change a job: each names a method and a path. A session's page proves by its token that it is ours.
"use strict";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-path]");
  if (!button) return;
  const { method, path, then, question } = button.dataset;
  if (question && !confirm(question)) return;
  const csrf = document.querySelector("meta[name=csrf]")?.content;
  button.disabled = true;
  try {
    const response = await fetch(path, { method, headers: csrf ? { "X-CSRF-Token": csrf } : {} });
    if (response.status === 204) location.assign(then);
    else if (response.ok) location.reload();
    else say(button, (await response.json()).detail);
  } catch (error) {
    say(button, `The server does not answer: ${error.message}`);
  }
});

function say(button, text) {
  button.disabled = false;
  button.parentElement.querySelector("output").textContent = text;
}
