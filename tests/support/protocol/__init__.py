"""Plans run only for their synchronisation protocol: what each task may read, and faults that must be detected."""
