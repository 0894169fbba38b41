"""Rules that are checked before a plan is made; each refusal is a sentence. This is where legality is defined."""
