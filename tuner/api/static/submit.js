// Keeps the commands beside the form up to date, by asking the server for the page with the fields as they are.
const form = document.getElementById("submit");
let timer = null;

function mark() {
  const what = form.elements.what.value;
  const attends = what.startsWith("attention") || what === "decoder layer";
  document.getElementById("sizes").disabled = what !== "ffn" || form.elements.model.value !== "";
  document.getElementById("attention").disabled = !attends;
  document.getElementById("run-names").disabled = !what.startsWith("decoder");
  form.elements.m.disabled = attends;
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
