"""tuner: searches fused persistent schedules for pairs of GPU kernels, proves them, and measures them."""

__version__ = "0.1.0"
