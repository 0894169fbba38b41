"""What is reported beside times: counters, traces, numbers, the library's calls, PyTorch's time."""
