"""Who may ask for jobs, and what becomes of what is asked."""
