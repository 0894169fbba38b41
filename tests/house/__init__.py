"""Rules of the codebase: size, imports, documents."""
