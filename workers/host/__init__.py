"""The supervisor of a card, its child process, and which cards there are."""
