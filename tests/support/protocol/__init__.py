"""Plans run for their protocol alone: what each task may read, and faults that must show."""
