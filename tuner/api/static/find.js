// Shows only table rows that contain all words of the search field.
const field = document.querySelector("#find input");
field.parentElement.hidden = false;
field.addEventListener("input", () => {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of document.querySelectorAll("main tbody tr")) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
});
// Enter would submit the form and clear the field.
field.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
