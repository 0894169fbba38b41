"""What published analytical models predict for a pair's traffic, compared with the simulator and with counters."""
