"""The supervisor of a card, its child process, and the list of cards."""
