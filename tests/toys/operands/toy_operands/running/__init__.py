"""A kind of tile op: what is asked is in `op`."""
