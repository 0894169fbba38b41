"""tuner: searches fused persistent schedules for pairs of GPU kernels, proves them, and measures them.

`tuner.tune` tunes a pair; `tuner.connect` opens a service for several. The stub next to this file has their types.
"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """What `tuner.python` has, imported when it is asked for: client and workers import this module too."""
    if name not in ("CudaSource", "KernelLaunch", "Result", "connect", "tune"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("tuner.python"), name)
