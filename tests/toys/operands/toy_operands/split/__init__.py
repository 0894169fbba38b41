"""A tile op kind, defined in `op`."""
