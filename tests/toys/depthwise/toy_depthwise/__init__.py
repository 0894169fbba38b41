"""A depthwise convolution along the rows of sequences, as a tile op."""
