// Asks for confirmation before a form does something that cannot be undone. Without JavaScript there is no
// confirmation.
document.addEventListener("submit", (event) => {
  const { question } = event.target.dataset;
  if (question && !confirm(question)) event.preventDefault();
});
