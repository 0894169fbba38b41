"""Results for export: how well one fits, packs, zip files."""
