"""What is reported besides times: counters, traces, numbers, the library's calls, PyTorch's time."""
