"""What a plan will take: a launch simulated, from costs, rates and memory."""
