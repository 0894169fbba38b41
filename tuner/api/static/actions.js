// Asks before a form does what cannot be undone. Without JavaScript the form does it at once.
document.addEventListener("submit", (event) => {
  const { question } = event.target.dataset;
  if (question && !confirm(question)) event.preventDefault();
});
