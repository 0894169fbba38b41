"""The database: its files, sessions, commits, errors and cursors."""
