"""Results as they leave: how well one fits, packs, zip files."""
