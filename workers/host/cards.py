"""The cards that the driver lists, by NVML, which makes no CUDA context."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tuner.errors import WorkerError
from tuner.versions import install_command


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU that the driver lists."""

    #: ``GPU-…``.
    uuid: str
    name: str
    compute_capability: tuple[int, int]
    driver: str


def usable_gpus() -> list[Card]:
    """The cards that can be tuned for: sm_80 or later, with CuPy and NVRTC installed; those that CUDA_VISIBLE_DEVICES
    names, where it is set.

    Raises:
        WorkerError: none is usable; the message says why.
    """
    missing = [name for name in ("pynvml", "cupy", "cuda.bindings") if not _is_installed(name)]
    if missing:
        raise WorkerError(f"{', '.join(missing)} not installed: {install_command('worker-cuda13')}")
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
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = cards if chosen is None else visible_of(cards, chosen)
    usable = [card for card in visible if card.compute_capability >= (8, 0)]
    if not usable:
        names = ", ".join(card.name for card in cards) or "none"
        among = "" if chosen is None else f", and CUDA_VISIBLE_DEVICES is {chosen!r}"
        raise WorkerError(f"no GPU of compute capability 8.0 or later is here ({names}{among})")
    return usable


def compute_pids(uuid: str) -> frozenset[int]:
    """Processes that compute on a card, as the driver lists them; none where it does not say.

    Raises:
        WorkerError: no driver answers, or it knows no such card.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return frozenset(int(one.pid) for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except pynvml.NVMLError as error:
        raise WorkerError(f"the driver does not say who uses {uuid} ({error})") from error


def visible_of(cards: Sequence[Card], chosen: str) -> list[Card]:
    """The cards that a value of CUDA_VISIBLE_DEVICES names, in its order: numbers, and UUIDs or the beginnings of such.
    As in CUDA, what names no card ends the list. The numbers are the driver's, CUDA's own where CUDA_DEVICE_ORDER is
    PCI_BUS_ID or the cards are of one model."""
    visible: list[Card] = []
    for name in (part.strip() for part in chosen.split(",")):
        numbered = cards[int(name) : int(name) + 1] if name.isdecimal() else ()
        named = numbered or [card for card in cards if name.startswith("GPU-") and card.uuid.startswith(name)]
        if len(named) != 1 or named[0] in visible:
            break
        visible.append(named[0])
    return visible


def _is_installed(name: str) -> bool:
    with suppress(ModuleNotFoundError):
        return importlib.util.find_spec(name) is not None
    return False
