"""The host half of the profiler: which metrics a chip has, what must be configured for them, and their values.

Runs without a GPU: a chip is identified by its name, e.g. ``GH100``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from tuner.errors import InvalidInput

from .library import Cupti, CuptiError
from .metrics import CATALOGUE
from .structs import METRIC_TYPES, RANGE_PROFILER, byte_array, names_array

#: CUPTI's name of a unit -> our name; other units keep CUPTI's.
_UNITS = {"byte": "bytes", "nanosecond": "ns", "second": "s", "instruction": "", "percent": "%"}


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The metrics that can be read, and why others cannot."""

    metrics: tuple[str, ...]
    #: Metric -> reason.
    absent: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Config:
    """What the device half receives."""

    metrics: tuple[str, ...]
    #: The configuration image, a C array.
    image: Any
    #: Runs that are needed to read all metrics.
    num_passes: int


class ProfilerHost:
    """CUPTI's host object for one chip; a context manager."""

    def __init__(self, cupti: Cupti, chip: str, availability: Any = None) -> None:
        """`availability` is the card's image of the counters that may be read; without it, all may.

        Raises:
            CuptiError: CUPTI does not support the chip.
        """
        self._cupti = cupti
        self.chip = chip
        self._availability = availability
        self._host = self._new_host()

    def _new_host(self) -> int:
        fields = {} if self._availability is None else {"pCounterAvailabilityImage": self._availability}
        made = self._cupti.call(
            "cuptiProfilerHostInitialize", profilerType=RANGE_PROFILER, pChipName=self.chip.encode(), **fields
        )
        return int(made.pHostObject)

    def close(self) -> None:
        """Frees the object."""
        self._free(self._host)

    def _free(self, host: int) -> None:
        self._cupti.call("cuptiProfilerHostDeinitialize", pHostObject=host)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @cached_property
    def base_metrics(self) -> dict[str, int]:
        """Name without rollup and submetric, e.g. ``dram__bytes_read`` -> its type."""
        found: dict[str, int] = {}
        for kind in METRIC_TYPES:
            listed = self._cupti.call("cuptiProfilerHostGetBaseMetrics", pHostObject=self._host, metricType=kind)
            found |= dict.fromkeys(_strings(listed.ppMetricNames, listed.numMetrics), kind)
        return found

    def endings(self, base: str) -> list[str]:
        """The suffixes of a base metric, e.g. ``sum``, ``avg.per_second``, ``pct``."""
        listed = self._cupti.call(
            "cuptiProfilerHostGetSubMetrics",
            pHostObject=self._host,
            metricType=self.base_metrics[base],
            pMetricName=base.encode(),
        )
        return [ending.lstrip(".") for ending in _strings(listed.ppSubMetrics, listed.numOfSubmetrics)]

    def choose(self, metrics: Iterable[str]) -> Chosen:
        """The metrics that this chip can read, checked one by one.

        Raises:
            InvalidInput: one of them exists neither on the chip nor in this program; the message names similar ones.
        """
        readable, absent = [], {}
        for metric in dict.fromkeys(metrics):
            if self._is_readable(metric):
                readable.append(metric)
            elif self._is_named(metric):
                absent[metric] = f"{self.chip} does not allow reading it"
            elif metric in CATALOGUE:
                absent[metric] = f"{self.chip} has no such counter"
            else:
                raise InvalidInput("metrics", f"{self.chip} has no metric called {metric!r}", self._remedy(metric))
        return Chosen(metrics=tuple(readable), absent=absent)

    def _is_readable(self, metric: str) -> bool:
        host = self._new_host()  # a refused metric may leave its object half configured
        try:
            self._config(host, (metric,))
        except CuptiError:
            return False
        finally:
            self._free(host)
        return True

    def _is_named(self, metric: str) -> bool:
        base, _, ending = metric.partition(".")
        return base in self.base_metrics and ending in self.endings(base)

    def _remedy(self, metric: str) -> str:
        base, _, ending = metric.partition(".")
        bases = [base] if base in self.base_metrics else get_close_matches(base, self.base_metrics)
        near = [f"{one}.{self._near_ending(one, ending)}" for one in bases]
        return f"use e.g. {' or '.join(near)}" if near else "use names from NVIDIA's Nsight Compute"

    def _near_ending(self, base: str, ending: str) -> str:
        endings = self.endings(base)
        return next(iter(get_close_matches(ending, endings, cutoff=0.3)), endings[-1])

    def configure(self, metrics: tuple[str, ...]) -> Config:
        """The configuration for all `metrics` together; to be called once.

        Raises:
            CuptiError: one of them cannot be read.
        """
        return self._config(self._host, metrics)

    def _config(self, host: int, metrics: tuple[str, ...]) -> Config:
        call = self._cupti.call
        call(
            "cuptiProfilerHostConfigAddMetrics",
            pHostObject=host,
            ppMetricNames=names_array(metrics),
            numMetrics=len(metrics),
        )
        size = call("cuptiProfilerHostGetConfigImageSize", pHostObject=host).configImageSize
        image = byte_array(size)
        call("cuptiProfilerHostGetConfigImage", pHostObject=host, configImageSize=size, pConfigImage=image)
        passes = call("cuptiProfilerHostGetNumOfPasses", configImageSize=size, pConfigImage=image).numOfPasses
        return Config(metrics=metrics, image=image, num_passes=int(passes))

    def evaluate(self, counter_data: Any, metrics: tuple[str, ...]) -> tuple[float, ...]:
        """The metrics' values in the first range of a decoded counter data image; NaN for missing values.

        Raises:
            CuptiError: the image does not belong to these metrics.
        """
        values = (ctypes.c_double * len(metrics))()
        self._cupti.call(
            "cuptiProfilerHostEvaluateToGpuValues",
            pHostObject=self._host,
            pCounterDataImage=counter_data,
            counterDataImageSize=len(counter_data),
            rangeIndex=0,
            ppMetricNames=names_array(metrics),
            numMetrics=len(metrics),
            pMetricValues=values,
        )
        return tuple(values)

    def describe(self, metric: str) -> tuple[str, str]:
        """Unit and one sentence: ours, otherwise CUPTI's."""
        known = CATALOGUE.get(metric)
        if known is not None:
            return known.unit, known.description
        answer = self._cupti.call(
            "cuptiProfilerHostGetMetricProperties", pHostObject=self._host, pMetricName=metric.encode()
        )
        unit, per, rest = (answer.pDimUnit or b"").decode().partition("/")
        text = (answer.pDescription or b"").decode().replace("# of", "number of").rstrip(
            "."
        ) or f"CUPTI's description of {metric}"
        return _UNITS.get(unit, unit) + per + _UNITS.get(rest, rest), f"{text[:1].upper()}{text[1:]}."


def _strings(array: Any, count: int) -> list[str]:
    return [array[i].decode() for i in range(count)]
