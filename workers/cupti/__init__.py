"""Hardware counters by CUPTI's Range Profiler, through ctypes: no Python package binds it. Needs no CUDA package."""
