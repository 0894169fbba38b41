"""The maximum of each two neighbours of a row, as a tile op without weights."""
