"""A tile op that limits elements to a range."""
