"""Results for export: matching, packs, zip files."""
