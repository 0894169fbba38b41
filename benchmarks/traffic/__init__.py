"""What published analytical models say of a pair's traffic, beside the simulator and the counters."""
