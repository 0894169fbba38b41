"""The layout of CUPTI's structures: as recorded from a C compiler, and as a local compiler computes it from the wheel's
headers."""

from __future__ import annotations

import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from tuner.workers.cupti.structs import CALLS, Params

#: The values that gcc printed for each STRUCT_SIZE, equal for the headers of the wheels 12.8.90, 12.9.79 and 13.0.85.
RECORDED_BYTES = {
    "CUpti_Profiler_Initialize_Params": 16,
    "CUpti_Profiler_DeviceSupported_Params": 52,
    "CUpti_Device_GetChipName_Params": 32,
    "CUpti_Profiler_GetCounterAvailability_Params": 40,
    "CUpti_Profiler_Host_Initialize_Params": 48,
    "CUpti_Profiler_Host_Deinitialize_Params": 24,
    "CUpti_Profiler_Host_GetBaseMetrics_Params": 48,
    "CUpti_Profiler_Host_GetSubMetrics_Params": 56,
    "CUpti_Profiler_Host_GetMetricProperties_Params": 60,
    "CUpti_Profiler_Host_ConfigAddMetrics_Params": 40,
    "CUpti_Profiler_Host_GetConfigImageSize_Params": 32,
    "CUpti_Profiler_Host_GetConfigImage_Params": 40,
    "CUpti_Profiler_Host_GetNumOfPasses_Params": 40,
    "CUpti_Profiler_Host_EvaluateToGpuValues_Params": 72,
    "CUpti_RangeProfiler_Enable_Params": 32,
    "CUpti_RangeProfiler_Disable_Params": 24,
    "CUpti_RangeProfiler_GetCounterDataSize_Params": 64,
    "CUpti_RangeProfiler_CounterDataImage_Initialize_Params": 40,
    "CUpti_RangeProfiler_SetConfig_Params": 90,
    "CUpti_RangeProfiler_Start_Params": 24,
    "CUpti_RangeProfiler_PushRange_Params": 32,
    "CUpti_RangeProfiler_PopRange_Params": 24,
    "CUpti_RangeProfiler_Stop_Params": 41,
    "CUpti_RangeProfiler_DecodeData_Params": 32,
    "CUpti_RangeProfiler_GetCounterDataInfo_Params": 40,
}
#: What the headers need from cuda.h, which is in another package, and what they need from C++.
STUBS = {
    "cuda.h": "typedef struct CUctx_st* CUcontext;\ntypedef int CUdevice;\n",
    "string": "",
}
HEADERS = (
    "stdio.h",
    "stddef.h",
    "cupti_profiler_target.h",
    "cupti_target.h",
    "cupti_profiler_host.h",
    "cupti_range_profiler.h",
)

#: Size as counted by CUPTI, then (offset, size) of each field.
Layout = tuple[int, list[tuple[int, int]]]


def field_names(params: type[Params]) -> list[str]:
    return [field[0] for field in params._fields_]


def test_sizes_are_those_that_a_compiler_printed() -> None:
    assert {params.c_name: params.num_bytes() for params in CALLS.values()} == RECORDED_BYTES
    for params in CALLS.values():
        assert params.make().structSize == RECORDED_BYTES[params.c_name]


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is here; the recorded sizes are compared")
def test_every_field_lies_where_the_compiler_puts_it(tmp_path: Path) -> None:
    ours = {
        params.c_name: (params.num_bytes(), [(field.offset, field.size) for field in fields])
        for params in CALLS.values()
        if (fields := [getattr(params, name) for name in field_names(params)])
    }
    assert compiled_layouts(tmp_path) == ours


def compiled_layouts(folder: Path) -> dict[str, Layout]:
    """The output of a program compiled with the wheel's headers."""
    include = metadata.distribution("nvidia-cuda-cupti").locate_file("nvidia/cu13/include")
    for name, text in STUBS.items():
        (folder / name).write_text(text)
    (folder / "layout.c").write_text(layout_program())
    build = ["cc", "-w", f"-I{folder}", f"-I{include}", "-o", "layout", "layout.c"]
    subprocess.run(build, check=True, capture_output=True, cwd=folder)
    lines = subprocess.run([folder / "layout"], check=True, capture_output=True, text=True).stdout.split("\n")[1:]
    found = {}
    for c_name, size, *rest in map(str.split, lines):
        numbers = [int(number) for number in rest]
        found[c_name] = (int(size), list(zip(numbers[::2], numbers[1::2], strict=True)))
    return found


def layout_program() -> str:
    includes = "".join(f"#include <{header}>\n" for header in HEADERS)
    prints = ""
    for params in CALLS.values():
        c_name = params.c_name
        prints += f'printf("\\n{c_name} %zu", (size_t){c_name}_STRUCT_SIZE);\n'
        for name in field_names(params):
            prints += f'printf(" %zu %zu", offsetof({c_name}, {name}), sizeof((({c_name}*)0)->{name}));\n'
    return f"#define CUPTIAPI\n{includes}int main(void) {{\n{prints}return 0;\n}}\n"
