"""Elements between two bounds, as a tile op."""
