"""Rules that are checked before a plan is made; each refusal is a sentence. These rules define legality."""
