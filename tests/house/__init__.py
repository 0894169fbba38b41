"""Tests of the codebase's rules: size, imports, documents."""
