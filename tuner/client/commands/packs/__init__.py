"""Commands for packs: create, show, verify."""
