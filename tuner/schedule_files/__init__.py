"""Files that users write: schedules, and their JSON schema."""
