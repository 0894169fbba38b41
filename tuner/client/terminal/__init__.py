"""How jobs, results and packs look in a terminal."""
