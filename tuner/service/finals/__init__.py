"""The end of a job: its finals, the winner's artifact, the result."""
