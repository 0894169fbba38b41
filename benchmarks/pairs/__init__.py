"""The pairs of the engine suites: searched, measured against each other, drawn."""
