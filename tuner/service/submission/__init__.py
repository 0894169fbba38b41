"""Who may submit jobs, and how requests are handled."""
