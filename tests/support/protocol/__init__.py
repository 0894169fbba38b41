"""Plans run for their synchronisation protocol alone: what each task may read, and faults that must be detected."""
