"""The device half of the profiler: reads the counters of the current context around a callable.

There is one range, in user replay: the callable runs once per pass, and all work on the device during it is counted.
Times measured later in the same process are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .host import Config
from .library import Cupti, CuptiError
from .structs import SUPPORTED, USER_RANGE, USER_REPLAY, byte_array, names_array

#: One pass more than the host half predicted would be a bug in CUPTI; without a limit it would last forever.
_MAX_EXTRA_PASSES = 8
#: Field of the answer -> what prevents profiling of the device.
_OBSTACLES = {
    "architecture": "the GPU is too old",
    "sli": "GPUs are linked (SLI)",
    "vGpu": "it is a virtual GPU",
    "confidentialCompute": "confidential computing is on",
    "cmp": "this GPU model does not support it",
    "wsl": "WSL does not allow it",
}


def chip_name(cupti: Cupti, device: int) -> str:
    """The host half's name of the chip of device `device`, e.g. ``GH100``.

    Raises:
        CuptiError: the device cannot be profiled; the message says why.
    """
    cupti.initialize()
    answer = cupti.call("cuptiProfilerDeviceSupported", cuDevice=device)
    if answer.isSupported < SUPPORTED:
        why = [sentence for field, sentence in _OBSTACLES.items() if getattr(answer, field) < SUPPORTED]
        raise CuptiError(f"the GPU cannot be profiled: {', '.join(why) or 'CUPTI does not say why'}")
    return str(cupti.call("cuptiDeviceGetChipName", deviceIndex=device).pChipName.decode())


def counter_availability(cupti: Cupti, context: int) -> Any:
    """The image of the counters that may be read in a context, a C array.

    Raises:
        CuptiError: none may be read; this is also raised if the driver does not permit it.
    """
    call = "cuptiProfilerGetCounterAvailability"
    size = cupti.call(call, ctx=context).counterAvailabilityImageSize
    image = byte_array(size)
    cupti.call(call, ctx=context, counterAvailabilityImageSize=size, pCounterAvailabilityImage=image)
    return image


def collect(
    cupti: Cupti, context: int, config: Config, run: Callable[[], None], before: Callable[[], None]
) -> tuple[Any, int]:
    """The decoded counter data of one range, a C array, and the number of calls of `run`.

    `before` is called before each run and is not counted. Both return only when the device has finished.

    Raises:
        CuptiError: the profiler failed.
    """
    with _enabled(cupti, context) as profiler:
        data = _counter_data(cupti, profiler, config.metrics)
        cupti.call(
            "cuptiRangeProfilerSetConfig",
            pRangeProfilerObject=profiler,
            configSize=len(config.image),
            pConfig=config.image,
            counterDataImageSize=len(data),
            pCounterDataImage=data,
            range=USER_RANGE,
            replayMode=USER_REPLAY,
            maxRangesPerPass=1,
            numNestingLevels=1,
            minNestingLevel=1,
            targetNestingLevel=1,
        )
        num_runs, is_done = 0, False
        while not is_done:
            if num_runs == config.num_passes + _MAX_EXTRA_PASSES:
                raise CuptiError(f"the profiler needs more passes than the {config.num_passes} that it announced")
            before()
            cupti.call("cuptiRangeProfilerStart", pRangeProfilerObject=profiler)
            cupti.call("cuptiRangeProfilerPushRange", pRangeProfilerObject=profiler, pRangeName=b"run")
            run()
            cupti.call("cuptiRangeProfilerPopRange", pRangeProfilerObject=profiler)
            stopped = cupti.call("cuptiRangeProfilerStop", pRangeProfilerObject=profiler)
            num_runs, is_done = num_runs + 1, bool(stopped.isAllPassSubmitted)
        dropped = cupti.call("cuptiRangeProfilerDecodeData", pRangeProfilerObject=profiler).numOfRangeDropped
        ranges = cupti.call(
            "cuptiRangeProfilerGetCounterDataInfo", pCounterDataImage=data, counterDataImageSize=len(data)
        ).numTotalRanges
        if dropped or ranges != 1:
            raise CuptiError(f"the profiler kept {ranges} ranges and dropped {dropped}, but one was run")
    return data, num_runs


@contextmanager
def _enabled(cupti: Cupti, context: int) -> Iterator[int]:
    """A range profiler on the context."""
    profiler = int(cupti.call("cuptiRangeProfilerEnable", ctx=context).pRangeProfilerObject)
    try:
        yield profiler
    except BaseException:
        with suppress(CuptiError):  # the first error is reported
            cupti.call("cuptiRangeProfilerDisable", pRangeProfilerObject=profiler)
        raise
    cupti.call("cuptiRangeProfilerDisable", pRangeProfilerObject=profiler)


def _counter_data(cupti: Cupti, profiler: int, metrics: tuple[str, ...]) -> Any:
    """An initialized image for one range of these metrics."""
    size = cupti.call(
        "cuptiRangeProfilerGetCounterDataSize",
        pRangeProfilerObject=profiler,
        pMetricNames=names_array(metrics),
        numMetrics=len(metrics),
        maxNumOfRanges=1,
        maxNumRangeTreeNodes=1,
    ).counterDataSize
    data = byte_array(size)
    cupti.call(
        "cuptiRangeProfilerCounterDataImageInitialize",
        pRangeProfilerObject=profiler,
        counterDataSize=size,
        pCounterData=data,
    )
    return data
