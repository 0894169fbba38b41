// Keeps the commands next to the form up to date, by requesting the page with the current fields.
const form = document.getElementById("submit");
let timer = null;

function mark() {
  const what = form.elements.what.value;
  for (const input of form.querySelectorAll("[data-whats]")) {
    const field = input.querySelector("input, select");
    const isGiven = form.elements.model.value !== "" && JSON.parse(input.dataset.byModel).includes(what);
    input.hidden = !JSON.parse(input.dataset.whats).includes(what);
    field.disabled = input.hidden || isGiven;
  }
}

async function refresh() {
  const fields = new URLSearchParams(new FormData(form));
  fields.delete("csrf");
  const response = await fetch(`${form.querySelector("[formaction]").getAttribute("formaction")}?${fields}`, { headers: { Accept: "text/html" } });
  if (!response.ok) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const id of ["live-problem", "live-commands"]) {
    document.getElementById(id).replaceChildren(...fresh.getElementById(id).childNodes);
  }
}

form.addEventListener("input", () => {
  mark();
  clearTimeout(timer);
  timer = setTimeout(refresh, 250);
});
mark();
