"""Results as files: checked, locked, written atomically."""
