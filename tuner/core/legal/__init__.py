"""What is refused before a plan is made, each with a sentence. The one statement of legality."""
