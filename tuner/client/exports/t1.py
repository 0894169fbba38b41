"""T1: a tuning problem in the format of other autotuners: axes with the values that were tried, and the best kernel.

Source: the schema T1/1.0.0 `input-schema.json` of Kernel Tuner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.client.documents.documents import JobDetail, Trial
from tuner.client.exports.axes import Value, values_of

_TYPES = {bool: "bool", int: "int", float: "float", str: "string"}
_ELEMENTS = {"fp16": "half", "fp32": "float"}
_ACCESS = {"input": "ReadOnly", "weight": "ReadOnly", "output": "WriteOnly", "intermediate": "ReadWrite"}


def problem_of(job: JobDetail, trials: Sequence[Trial], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a problem.

    Args:
        manifest: that of the job's kernel. Every tiling has its own source; the document names this kernel's.
    """
    kernel, launch = manifest["kernel"], manifest["launches"][0]
    budget = job["budget"]
    return {
        "General": {"FormatVersion": 1, "BenchmarkName": job["workload"], "TimeUnit": "Milliseconds"},
        "ConfigurationSpace": {
            "TuningParameters": [_parameter(name, values) for name, values in values_of(trials).items()]
        },
        "Search": {"Name": "tuner", "Attributes": [{"Name": "seed", "Value": str(job["seed"])}]},
        "Budget": [
            {"Type": "ConfigurationCount", "BudgetValue": budget["trials"]},
            {"Type": "TuningDuration", "BudgetValue": budget["seconds"]},
        ],
        "KernelSpecification": {
            "Device": {"Name": manifest["environment"]["gpu_name"]},
            "Language": "CUDA",
            "CompilerOptions": list(kernel["compiler"]["options"]),
            "KernelName": kernel["name"],
            "KernelFile": kernel["source"],
            "SharedMemory": launch["dynamic_smem_bytes"],
            "GlobalSizeType": "CUDA",
            "GlobalSize": _sizes(launch["grid"]),
            "LocalSize": _sizes(launch["block"]),
            "Arguments": [_argument(tensor) for tensor in manifest["tensors"]],
        },
        "tuner": {"job": job["id"], "target": job["target"], "simulated": job["simulated"]},
    }


def _parameter(name: str, values: Sequence[Value]) -> dict[str, Any]:
    return {"Name": name, "Type": _TYPES[type(values[0])], "Values": repr(list(values))}


def _sizes(three: Sequence[int]) -> dict[str, str]:
    return {axis: str(size) for axis, size in zip("XYZ", three, strict=True)}


def _argument(tensor: Mapping[str, Any]) -> dict[str, Any]:
    size = 1
    for extent in tensor["shape"]:
        size *= extent
    return {
        "Name": tensor["name"],
        "Type": _ELEMENTS.get(tensor["dtype"], "custom"),
        "Size": size,
        "AccessType": _ACCESS.get(tensor["role"], "ReadOnly"),
        "MemoryType": "Vector",
    }
