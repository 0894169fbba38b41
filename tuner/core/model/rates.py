"""What share of its data-sheet rates a GPU achieves: rates and latencies for the simulator's costs.

The catalogue has estimates for every GPU. If there are measured trials of a GPU, a fit to them is used instead: a small
file with its date and source. Those in `fits/` are built in (`benchmarks/simulator/judge.py` writes them); `tuner fit`
makes one from the trials of your own card, which takes precedence.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from tuner.core.problem.gpu import Gpu
from tuner.core.schedule.tiling import Engine
from tuner.errors import InvalidInput

#: Environment variable with the folder of your own fits, which passes it to child processes.
FITS_VARIABLE = "TUNER_FITS"


@dataclass(frozen=True, kw_only=True)
class EngineRates:
    """Rates of one main loop on an SM."""

    #: Maximum share of the tensor cores' rate.
    tensor_share: float
    #: Share of 64 bytes per clock that an SM gets from the L2.
    port_share: float
    #: Share of the shared memory's rate, if warps read fragments from it.
    smem_share: float
    #: Time per k-step for barriers and addresses.
    step_us: float
    #: If several tiles read the same weights, each waits for the first one that requests them. This is the resulting
    #: share of the shorter of multiplying and loading from DRAM that does not overlap with the other. A tile with its
    #: own stream of weights has such a loss only with few bits (`task_costs.FEW_BITS`).
    exposed_share: float
    #: Time per task for its words, first addresses and barriers.
    task_us: float
    #: Microseconds for rounding and storing a tile, per KiB of its output.
    store_us_per_kib: float
    #: Microseconds for writing or reading a part's sums, per KiB.
    sum_us_per_kib: float
    #: Time of an arrival at a tile in parts.
    arrival_us: float


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The rates that a GPU achieves."""

    mma: EngineRates
    wgmma: EngineRates
    #: Share of the data sheet's DRAM rate that a stream of reads achieves.
    dram_share: float
    #: DRAM time added per row of a stage, in bytes, since rows are apart and short ones are read slowly.
    dram_row_bytes: float
    #: Time from a request to its first bytes, from the DRAM and from the L2.
    dram_latency_us: float
    l2_latency_us: float
    #: Share of 64 bytes per clock and SM that the SMs get from the L2 when all of them request.
    l2_share: float
    #: Share of the L2 that holds distinct lines; a line may be in both of its partitions.
    l2_capacity_share: float
    #: Time from the launch in a graph to the first task's start.
    launch_us: float
    #: Time for the atomic round trip and broadcast of a ticket.
    ticket_us: float
    #: Time for a poll that finds the signals set, and for each further pass over one signal per polling thread.
    poll_us: float
    #: Time for the barrier, fence and reduction of a post.
    post_us: float

    def dram_stretch(self, row_bits: int) -> float:
        """How much longer than its bytes a stage's rows of weights, `row_bits` each, occupy the DRAM."""
        return 1 + self.dram_row_bytes / (row_bits / 8)

    def of(self, engine: Engine) -> EngineRates:
        """An engine's rates. simt uses those of mma, whose main loop is fed the same way, until its own trials are
        fitted.
        """
        return self.wgmma if engine is Engine.WGMMA else self.mma

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`."""
        engines = {name: EngineRates(**data[name]) for name in ("mma", "wgmma")}
        return cls(**{field.name: engines.get(field.name, data[field.name]) for field in fields(cls)})


#: Latencies: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024, under load.
CATALOGUE_RATES = Rates(
    mma=EngineRates(
        tensor_share=0.65,
        port_share=0.8,
        smem_share=0.65,
        step_us=0.03,
        exposed_share=0.3,
        task_us=0.2,
        store_us_per_kib=0.01,
        sum_us_per_kib=0.012,
        arrival_us=0.5,
    ),
    wgmma=EngineRates(
        tensor_share=0.9,
        port_share=0.9,
        smem_share=0.9,
        step_us=0.03,
        exposed_share=0.3,
        task_us=0.2,
        store_us_per_kib=0.01,
        sum_us_per_kib=0.012,
        arrival_us=0.5,
    ),
    dram_share=0.92,
    dram_row_bytes=8.0,
    dram_latency_us=0.75,
    l2_latency_us=0.25,
    l2_share=0.75,
    l2_capacity_share=0.6,
    launch_us=2.0,
    ticket_us=0.4,
    poll_us=0.5,
    post_us=0.5,
)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Rates fitted to measured trials of one GPU."""

    rates: Rates
    #: The GPU's catalogue id, and its name as reported by the driver.
    gpu: str
    gpu_name: str
    #: ISO date, commit of the trials, and their number.
    date: str
    commit: str
    num_trials: int

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values; `from_json` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(**{**data, "rates": Rates.from_json(data["rates"])})


def use_fits(folder: Path) -> None:
    """Makes the fits in a folder, if it exists, take precedence over the built-in ones, here and in processes that
    start later.

    Raises:
        InvalidInput: one of them is invalid.
    """
    if not folder.is_dir():
        return
    for path in sorted(folder.glob("*.json")):
        fit = read_fit(path)
        if fit.gpu != path.stem:
            raise InvalidInput(str(path), f"is a fit for {fit.gpu!a}", f"rename it to {fit.gpu}.json, or delete it")
    os.environ[FITS_VARIABLE] = str(folder)
    _fit_in.cache_clear()


def read_fit(path: Path) -> Fit:
    """Reads a file with the JSON of `Fit.to_json`.

    Raises:
        InvalidInput: it is not a fit.
    """
    try:
        fit = Fit.from_json(json.loads(path.read_text()))
        rates = fit.rates.to_json()
        values = [*rates.pop("mma").values(), *rates.pop("wgmma").values(), *rates.values()]
        if not all(isinstance(value, float | int) and 0 < float(value) < float("inf") for value in values):
            raise ValueError("each rate must be a number above 0")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidInput(
            str(path), f"is not a valid fit: {error}", "create it again with `tuner fit`, or delete it"
        ) from error
    return fit


def fit_of(gpu_id: str) -> Fit | None:
    """The fit to trials of that GPU, if there is one: your own, otherwise the built-in one."""
    return _fit_in(os.environ.get(FITS_VARIABLE, ""), gpu_id)


def shipped_fit(gpu_id: str) -> Fit | None:
    """The built-in fit to trials of that GPU, if there is one."""
    return _fit_in("", gpu_id)


@lru_cache(maxsize=64)
def _fit_in(folder: str, gpu_id: str) -> Fit | None:
    own = Path(folder, f"{gpu_id}.json")
    if folder and own.is_file():
        return read_fit(own)
    file = files(__package__).joinpath("fits", f"{gpu_id}.json")
    return Fit.from_json(json.loads(file.read_text())) if file.is_file() else None


def rates_of(gpu: Gpu) -> Rates:
    """The rates of the GPU's fit if there is one, otherwise those of the catalogue."""
    fit = fit_of(gpu.id)
    return fit.rates if fit else CATALOGUE_RATES


def source_of_rates(gpu: Gpu) -> str:
    """A sentence on the basis of forecasts for a GPU."""
    if fit := fit_of(gpu.id):
        return f"Forecasts: fitted to {fit.num_trials} measured trials on an {fit.gpu_name} ({fit.date})."
    return f"Forecasts: by the data sheet of the {gpu.name}; no trials of one were fitted (tuner fit)."
