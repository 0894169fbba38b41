"""The order in which tasks run, and the CTA that runs each."""
