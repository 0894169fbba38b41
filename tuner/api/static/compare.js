// Hides equal rows if the checkbox is set.
const choice = document.getElementById("only-different");
if (choice) {
  choice.hidden = false;
  choice.addEventListener("change", () => {
    for (const row of document.querySelectorAll("tr.same")) row.hidden = choice.firstElementChild.checked;
  });
}
