"""Who may submit jobs, and how submissions are handled."""
