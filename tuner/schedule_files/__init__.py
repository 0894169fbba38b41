"""Files that people write: schedules, and their JSON schema."""
