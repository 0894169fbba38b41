"""The calls of CUPTI that we use, and their parameter structures, with C's names of functions and fields.

Source: cupti_profiler_target.h, cupti_target.h, cupti_profiler_host.h and cupti_range_profiler.h; CUPTI 12.8, 12.9 and
13.0 declare them identically, and later versions append to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_size_t, c_uint8, c_uint16, c_uint32, c_void_p
from typing import Any, Self

#: Our values of CUpti_ProfilerType, CUpti_ProfilerRange and CUpti_ProfilerReplayMode.
RANGE_PROFILER, USER_RANGE, USER_REPLAY = 0, 2, 3
#: A value of CUpti_Profiler_Support_Level: from here on, profiling works.
SUPPORTED = 3
#: CUpti_MetricType: counter, ratio, throughput.
METRIC_TYPES = (0, 1, 2)

_Names = POINTER(c_char_p)
_Bytes = POINTER(c_uint8)


class Params(Structure):
    """The first fields of all parameter structures."""

    #: Name of the structure in C.
    c_name: str

    @classmethod
    def num_bytes(cls) -> int:
        """CUPTI's STRUCT_SIZE: up to the end of the last field, without the padding after it."""
        last = getattr(cls, next(reversed(list(cls._fields_)))[0])
        return int(last.offset + last.size)

    @classmethod
    def make(cls, **fields: Any) -> Self:
        """A structure with its size, `fields`, and zeros."""
        return cls(structSize=cls.num_bytes(), **fields)


def _params(c_name: str, **fields: Any) -> type[Params]:
    common = (("structSize", c_size_t), ("pPriv", c_void_p))
    return type(c_name, (Params,), {"_fields_": (*common, *fields.items()), "c_name": c_name})


def _profiler(c_name: str, **fields: Any) -> type[Params]:
    return _params(f"CUpti_RangeProfiler_{c_name}_Params", pRangeProfilerObject=c_void_p, **fields)


def _host(c_name: str, **fields: Any) -> type[Params]:
    return _params(f"CUpti_Profiler_Host_{c_name}_Params", pHostObject=c_void_p, **fields)


#: Function -> its parameter structure.
CALLS: Mapping[str, type[Params]] = {
    "cuptiProfilerInitialize": _params("CUpti_Profiler_Initialize_Params"),
    "cuptiProfilerDeviceSupported": _params(
        "CUpti_Profiler_DeviceSupported_Params",
        cuDevice=c_int,
        isSupported=c_int,
        architecture=c_int,
        sli=c_int,
        vGpu=c_int,
        confidentialCompute=c_int,
        cmp=c_int,
        wsl=c_int,
        api=c_int,
    ),
    "cuptiDeviceGetChipName": _params("CUpti_Device_GetChipName_Params", deviceIndex=c_size_t, pChipName=c_char_p),
    "cuptiProfilerGetCounterAvailability": _params(
        "CUpti_Profiler_GetCounterAvailability_Params",
        ctx=c_void_p,
        counterAvailabilityImageSize=c_size_t,
        pCounterAvailabilityImage=_Bytes,
    ),
    "cuptiProfilerHostInitialize": _params(
        "CUpti_Profiler_Host_Initialize_Params",
        profilerType=c_int,
        pChipName=c_char_p,
        pCounterAvailabilityImage=_Bytes,
        pHostObject=c_void_p,
    ),
    "cuptiProfilerHostDeinitialize": _host("Deinitialize"),
    "cuptiProfilerHostGetBaseMetrics": _host(
        "GetBaseMetrics", metricType=c_int, ppMetricNames=_Names, numMetrics=c_size_t
    ),
    "cuptiProfilerHostGetSubMetrics": _host(
        "GetSubMetrics", metricType=c_int, pMetricName=c_char_p, numOfSubmetrics=c_size_t, ppSubMetrics=_Names
    ),
    "cuptiProfilerHostGetMetricProperties": _host(
        "GetMetricProperties",
        pMetricName=c_char_p,
        pDescription=c_char_p,
        pHwUnit=c_char_p,
        pDimUnit=c_char_p,
        metricType=c_int,
    ),
    "cuptiProfilerHostConfigAddMetrics": _host("ConfigAddMetrics", ppMetricNames=_Names, numMetrics=c_size_t),
    "cuptiProfilerHostGetConfigImageSize": _host("GetConfigImageSize", configImageSize=c_size_t),
    "cuptiProfilerHostGetConfigImage": _host("GetConfigImage", configImageSize=c_size_t, pConfigImage=_Bytes),
    "cuptiProfilerHostGetNumOfPasses": _params(
        "CUpti_Profiler_Host_GetNumOfPasses_Params", configImageSize=c_size_t, pConfigImage=_Bytes, numOfPasses=c_size_t
    ),
    "cuptiProfilerHostEvaluateToGpuValues": _host(
        "EvaluateToGpuValues",
        pCounterDataImage=_Bytes,
        counterDataImageSize=c_size_t,
        rangeIndex=c_size_t,
        ppMetricNames=_Names,
        numMetrics=c_size_t,
        pMetricValues=POINTER(c_double),
    ),
    "cuptiRangeProfilerEnable": _params(
        "CUpti_RangeProfiler_Enable_Params", ctx=c_void_p, pRangeProfilerObject=c_void_p
    ),
    "cuptiRangeProfilerDisable": _profiler("Disable"),
    "cuptiRangeProfilerGetCounterDataSize": _profiler(
        "GetCounterDataSize",
        pMetricNames=_Names,
        numMetrics=c_size_t,
        maxNumOfRanges=c_size_t,
        maxNumRangeTreeNodes=c_uint32,
        counterDataSize=c_size_t,
    ),
    "cuptiRangeProfilerCounterDataImageInitialize": _profiler(
        "CounterDataImage_Initialize", counterDataSize=c_size_t, pCounterData=_Bytes
    ),
    "cuptiRangeProfilerSetConfig": _profiler(
        "SetConfig",
        configSize=c_size_t,
        pConfig=_Bytes,
        counterDataImageSize=c_size_t,
        pCounterDataImage=_Bytes,
        range=c_int,
        replayMode=c_int,
        maxRangesPerPass=c_size_t,
        numNestingLevels=c_uint16,
        minNestingLevel=c_uint16,
        passIndex=c_size_t,
        targetNestingLevel=c_uint16,
    ),
    "cuptiRangeProfilerStart": _profiler("Start"),
    "cuptiRangeProfilerPushRange": _profiler("PushRange", pRangeName=c_char_p),
    "cuptiRangeProfilerPopRange": _profiler("PopRange"),
    "cuptiRangeProfilerStop": _profiler(
        "Stop", passIndex=c_size_t, targetNestingLevel=c_size_t, isAllPassSubmitted=c_uint8
    ),
    "cuptiRangeProfilerDecodeData": _profiler("DecodeData", numOfRangeDropped=c_size_t),
    "cuptiRangeProfilerGetCounterDataInfo": _params(
        "CUpti_RangeProfiler_GetCounterDataInfo_Params",
        pCounterDataImage=_Bytes,
        counterDataImageSize=c_size_t,
        numTotalRanges=c_size_t,
    ),
}


def names_array(names: tuple[str, ...]) -> Any:
    """A C array of strings."""
    return (c_char_p * len(names))(*(name.encode() for name in names))


def byte_array(num_bytes: int) -> Any:
    """A C array of zero bytes, aligned to 8."""
    return (c_uint8 * num_bytes)()
