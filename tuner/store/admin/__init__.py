"""Backups, migrations, removal, and which of several servers leads."""
