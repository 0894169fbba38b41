"""How jobs, results and packs are shown in a terminal."""
