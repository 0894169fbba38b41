"""The cards that the driver lists, by NVML, which makes no CUDA context."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from dataclasses import dataclass

from tuner.errors import WorkerError


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU that the driver lists."""

    #: ``GPU-…``.
    uuid: str
    name: str
    compute_capability: tuple[int, int]
    driver: str


def usable_gpus() -> list[Card]:
    """The cards that can be tuned for: sm_80 or later, with CuPy and NVRTC installed.

    Raises:
        WorkerError: none is usable; the message says why.
    """
    missing = [name for name in ("pynvml", "cupy", "cuda.bindings") if not _is_installed(name)]
    if missing:
        raise WorkerError(f"{', '.join(missing)} not installed: pip install 'tuner[worker-cuda13]'")
    import pynvml

    try:
        pynvml.nvmlInit()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        cards = [
            Card(
                uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
                name=str(pynvml.nvmlDeviceGetName(handle)),
                compute_capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
                driver=driver,
            )
            for handle in handles
        ]
    except pynvml.NVMLError as error:
        raise WorkerError(f"no NVIDIA driver answers ({error})") from error
    usable = [card for card in cards if card.compute_capability >= (8, 0)]
    if not usable:
        names = ", ".join(card.name for card in cards) or "none"
        raise WorkerError(f"no GPU of compute capability 8.0 or later is here ({names})")
    return usable


def _is_installed(name: str) -> bool:
    with suppress(ModuleNotFoundError):
        return importlib.util.find_spec(name) is not None
    return False
