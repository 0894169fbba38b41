"""What one may know of jobs and trials."""
