"""Jobs, results and packs as terminal output."""
