"""What a captured CUDA graph consists of, and one replay of it, kernel by kernel."""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import Any

import torch


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("sizes", ctypes.c_uint * 7),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


def name_of(cuda: ctypes.CDLL, node: int) -> str:
    """Of a graph's node: the kernel's name, or its kind."""
    kind, found, name = ctypes.c_int(), KernelNode(), ctypes.c_char_p()
    cuda.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
    if kind.value != 0 or cuda.cuGraphKernelNodeGetParams_v2(ctypes.c_void_p(node), ctypes.byref(found)):
        return f"node of kind {kind.value}"
    if found.kernel:
        cuda.cuKernelGetName(ctypes.byref(name), ctypes.c_void_p(found.kernel))
    else:
        cuda.cuFuncGetName(ctypes.byref(name), ctypes.c_void_p(found.function))
    return (name.value or b"?").decode()[:70]


def edges_of(graph: Any) -> dict[str, int]:
    """How many programmatic edges there are between kernels of which names."""
    cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
    handle = ctypes.c_void_p(graph.raw_cuda_graph())
    cuda.cuGraphGetEdges_v2(handle, None, None, None, ctypes.byref(count))
    starts, ends = (ctypes.c_void_p * count.value)(), (ctypes.c_void_p * count.value)()
    data = (ctypes.c_uint8 * 8 * count.value)()
    cuda.cuGraphGetEdges_v2(handle, starts, ends, data, ctypes.byref(count))
    found = Counter(
        f"{name_of(cuda, start)} -> {name_of(cuda, end)}"
        for start, end, of in zip(starts, ends, data, strict=True)
        if of[2] == 1
    )
    return dict(found.most_common())


def timeline(graph: Any) -> list[tuple[str, float, float]]:
    """One replay, kernel by kernel: its name, microseconds, and those since the end of all before it; these are less
    than 0 where it began earlier."""
    graph.replay()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    on_card = torch.autograd.DeviceType.CUDA
    events = [one for one in profile.profiler.kineto_results.events() if one.device_type() == on_card]
    rows, end_ns = [], 0
    for one in sorted(events, key=lambda event: event.start_ns()):
        gap_us = (one.start_ns() - end_ns) / 1e3 if end_ns else 0.0
        rows.append((one.name()[:70], round(one.duration_ns() / 1e3, 2), round(gap_us, 2)))
        end_ns = max(end_ns, one.start_ns() + one.duration_ns())
    return rows


def by_kernel(rows: list[tuple[str, float, float]], layers: int) -> list[dict[str, Any]]:
    """A timeline summed up: for each kernel how often a layer runs it, its microseconds a layer and those before it."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name, us, gap_us in rows:
        found.setdefault(name, []).append((us, gap_us))
    sums = [
        {
            "kernel": name,
            "runs": round(len(of) / layers, 3),
            "us": round(sum(us for us, _ in of) / layers, 3),
            "gap_us": round(sum(gap_us for _, gap_us in of) / layers, 3),
        }
        for name, of in found.items()
    ]
    return sorted(sums, key=lambda one: -float(one["us"]))
