"""What listings of many jobs show: sorted rows of jobs and of batches."""
