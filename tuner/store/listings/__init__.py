"""What listings of many jobs show: rows of jobs and of batches, in some order."""
