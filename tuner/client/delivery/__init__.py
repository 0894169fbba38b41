"""Results as files: checked, locked, written whole."""
