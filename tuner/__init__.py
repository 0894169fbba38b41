"""tuner: searches, proves and measures fused persistent schedules for pairs and chains of GPU kernels.

`tuner.tune` tunes a pair; `tuner.connect` opens a connection for several. The stub next to this file has their types.
"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """An attribute of `tuner.python`, imported on demand, since clients and workers import this module, too."""
    if name not in ("CudaSource", "KernelLaunch", "Result", "connect", "tune"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("tuner.python"), name)
