"""The database underneath: its files, sessions, commits, errors and cursors."""
