"""Pictures of one trial, as geometry that a template turns into SVG."""
