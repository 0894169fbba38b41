// Shows the rows of the page's tables that have all words of the search field.
const field = document.querySelector("#find input");
field.parentElement.hidden = false;
field.addEventListener("input", () => {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of document.querySelectorAll("main tbody tr")) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
});
// Enter would send the form, and with it forget what was typed.
field.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
