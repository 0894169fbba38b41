"""The dashboard's pages of jobs and trials."""
