"""A pair of convolutions in which each CTA computes what it needs of the first one's output."""
