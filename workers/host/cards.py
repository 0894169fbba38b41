"""The cards that the driver lists, by NVML, which creates no CUDA context."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tuner.errors import WorkerError
from tuner.versions import install_command

_SLICES = (
    "slices are not measured, since they share clocks and power with their neighbours and have fewer SMs; ask an "
    "administrator to switch MIG off (nvidia-smi -mig 0), or choose a whole card"
)


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU that the driver lists."""

    #: ``GPU-…``.
    uuid: str
    name: str
    compute_capability: tuple[int, int]
    driver: str
    #: Whether the card is divided into MIG instances, one of which CUDA assigns to a process.
    is_sliced: bool = False


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The driver's cards that are used for tuning."""

    usable: tuple[Card, ...]
    #: Why each of the others is not used, one sentence per card.
    refused: tuple[str, ...]


def usable_gpus() -> list[Card]:
    """The cards of `choice_of_gpus`.

    Raises:
        WorkerError: same as for `choice_of_gpus`.
    """
    return list(choice_of_gpus().usable)


def choice_of_gpus() -> Choice:
    """The cards that can be used for tuning: sm_80 or later, whole, with CuPy and NVRTC installed; only those in
    CUDA_VISIBLE_DEVICES, if it is set.

    Raises:
        WorkerError: none is usable; the message says why.
    """
    if missing := missing_packages():
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
                is_sliced=_is_sliced(handle),
            )
            for handle in handles
        ]
    except pynvml.NVMLError as error:
        raise WorkerError(f"no NVIDIA driver responds ({error})") from error
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return choose(cards, chosen)


def missing_packages() -> list[str]:
    """The packages that measuring on a card needs and that are not installed."""
    return [name for name in ("pynvml", "cupy", "cuda.bindings") if not _is_installed(name)]


def choose(cards: Sequence[Card], chosen: str | None) -> Choice:
    """The driver's cards that can be used for tuning; `chosen` is the value of CUDA_VISIBLE_DEVICES.

    Raises:
        WorkerError: none is usable; the message says why.
    """
    visible = cards if chosen is None else visible_of(cards, chosen)
    new = [card for card in visible if card.compute_capability >= (8, 0)]
    refused = [f"{card.name} ({card.uuid}) is split into MIG slices: {_SLICES}" for card in new if card.is_sliced]
    usable = [card for card in new if not card.is_sliced]
    if usable:
        return Choice(usable=tuple(usable), refused=tuple(refused))
    if refused:
        raise WorkerError("; ".join(refused))
    if chosen is not None and "MIG-" in chosen:
        raise WorkerError(f"CUDA_VISIBLE_DEVICES is {chosen!r}, a MIG slice of a card: {_SLICES}")
    names = ", ".join(card.name for card in cards) or "none"
    among = "" if chosen is None else f", and CUDA_VISIBLE_DEVICES is {chosen!r}"
    raise WorkerError(f"there is no GPU of compute capability 8.0 or later here ({names}{among})")


def _is_sliced(handle: object) -> bool:
    """Whether MIG is on. For a card without MIG, it is off."""
    import pynvml

    try:
        return pynvml.NVML_DEVICE_MIG_ENABLE in tuple(pynvml.nvmlDeviceGetMigMode(handle))[:1]
    except pynvml.NVMLError:
        return False


def compute_pids(uuid: str) -> frozenset[int]:
    """Processes that compute on a card, as the driver lists them; none if it does not report them.

    Raises:
        WorkerError: there is no driver, or it does not know this card.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return frozenset(int(one.pid) for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except pynvml.NVMLError as error:
        raise WorkerError(f"the driver does not report which processes use {uuid} ({error})") from error


def visible_of(cards: Sequence[Card], chosen: str) -> list[Card]:
    """The cards of a value of CUDA_VISIBLE_DEVICES, in its order: numbers, and UUIDs or prefixes of them. As in CUDA, a
    name without a card ends the list. The numbers are the driver's, which CUDA also uses if CUDA_DEVICE_ORDER is
    PCI_BUS_ID or all cards are of one model."""
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
