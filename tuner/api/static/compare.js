// Hides the rows that are equal, where the reader asks for that.
const choice = document.getElementById("only-different");
if (choice) {
  choice.hidden = false;
  choice.addEventListener("change", () => {
    for (const row of document.querySelectorAll("tr.same")) row.hidden = choice.firstElementChild.checked;
  });
}
