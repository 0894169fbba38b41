"""Authorization."""
