"""Whether the launches of a manifest can be its plans', and their parameters as bytes."""
