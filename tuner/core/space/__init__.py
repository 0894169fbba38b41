"""What is offered to a search: tilings, orderings and their values."""
