"""A gated pair on the visible card, by PyTorch's arrays and the driver's launches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver

from benchmarks.attention.timing import captured, samples_us
from benchmarks.middle.halves import SMS, Way, built, starts_of
from tuner.core.problem.workload import Dtype
from tuner.core.trial.stats import median
from tuner.workers.gpu.launching.launch import check, programmatic_attribute
from tuner.workers.gpu.launching.tensor_maps import encode
from tuner.workers.source.tensor_maps import TensorMap

SETS, ROUNDS = 8, 11


def _map(array: Any, dims: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]) -> Any:
    return encode(TensorMap(op=0, operand="w", dims=dims, strides_bytes=strides, box=box), Dtype.FP16, array.data_ptr())


def _matrix(array: Any, box_rows: int) -> Any:
    rows, k = array.shape
    return _map(array, (k, rows), (2 * k,), (64, box_rows))


def _gated(array: Any, groups: int) -> Any:
    """Of [2, hidden, k]: 8 rows of the gate and of the up projection in turns."""
    _, hidden, k = array.shape
    strides = (2 * k, 2 * k * hidden, 16 * k, 128)
    return _map(array, (64, 8, 2, hidden // 8, k // 64), strides, (64, 8, 2, 4 * groups, 1))


class Product:
    """A built kernel and its launches."""

    def __init__(self, way: Way, cubin: bytes, num_tiles: int, *, early: bool) -> None:
        self.way, self.early, self.smem = way, early, way.stages * (64 * way.groups + way.rows) * 128
        module = check(driver.cuModuleLoadData(np.frombuffer(cubin, dtype=np.uint8).ctypes.data))
        self.function = check(driver.cuModuleGetFunction(module, b"product"))
        name = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(driver.cuFuncSetAttribute(self.function, name, self.smem))
        self.num_tiles, self.grid = num_tiles, num_tiles if way.whole else SMS // way.ctas * way.ctas
        self.sums = torch.empty(2 * self.grid * way.rows * 128, dtype=torch.float32, device="cuda")
        self.stamps = torch.zeros(self.grid, 16, dtype=torch.int64, device="cuda")
        self.flags = torch.zeros(self.grid, dtype=torch.int32, device="cuda")
        self.attributes = [programmatic_attribute()] if early else []
        if way.ctas > 1:
            cluster = driver.CUlaunchAttribute()
            cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            value = driver.CUlaunchAttributeValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = way.ctas, 1, 1
            cluster.value = value
            self.attributes.append(cluster)

    def bound(self, weights: Any, source: Any, out: Any) -> Callable[[], None]:
        """A launch on these arrays."""
        way = self.way
        rows, k = source.shape
        maps = [
            _gated(weights, way.groups) if weights.dim() == 3 else _matrix(weights, 64 * way.groups),
            _matrix(source, way.rows // way.ctas if way.ctas > 1 else way.columns),
        ]
        held = []
        for one in maps:
            buffer = ctypes.create_string_buffer(len(one) + 64)
            at = -(-ctypes.addressof(buffer) // 64) * 64
            ctypes.memmove(at, one, len(one))
            held.append((buffer, at))
        starts = starts_of(k // 64, self.num_tiles // way.ctas, self.grid // way.ctas, way)
        self.starts = torch.tensor(starts, dtype=torch.int32, device="cuda")
        numbers = [ctypes.c_void_p(one.data_ptr()) for one in (out, self.sums, self.flags, self.stamps, self.starts)]
        numbers += [ctypes.c_int(one) for one in (k // 64, rows, out.shape[1], int(self.early))]
        places = [at for _, at in held] + [ctypes.addressof(one) for one in numbers]
        pointers = (ctypes.c_void_p * len(places))(*places)

        def launch() -> None:
            config = driver.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = self.grid, 1, 1
            config.blockDimX, config.blockDimY, config.blockDimZ = 128 * self.way.groups + 128, 1, 1
            config.sharedMemBytes, config.hStream = self.smem, torch.cuda.current_stream().cuda_stream
            config.attrs, config.numAttrs = self.attributes, len(self.attributes)
            check(driver.cuLaunchKernelEx(config, self.function, ctypes.addressof(pointers), 0))

        launch.held = (held, numbers, pointers, self.starts)  # type: ignore[attr-defined]
        return launch


def cycles_of(stamps: Any) -> dict[str, int]:
    """Medians over CTAs that finish a tile, in cycles from their start: the first stage is there, the last main loop
    ends, others' sums are added, all is stored."""
    found = stamps.cpu().numpy()
    done = found[found[:, 7] > 0]
    names = {"first_stage": 1, "loop_end": 5, "added": 6, "stored": 7}
    return {name: int(np.median(done[:, place] - done[:, 0])) for name, place in names.items()}


def time_pair(sizes: tuple[int, int, int], ways: list[Way]) -> dict[str, dict[str, Any]]:
    """Microseconds of a pair and of its products, each way."""
    width, hidden, rows = sizes
    torch.manual_seed(0)

    def random(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.float16)

    sets = [(random(2, hidden, width) * width**-0.5, random(width, hidden) * hidden**-0.5) for _ in range(SETS)]
    x, h, y = random(rows, width), torch.empty(rows, hidden, device="cuda", dtype=torch.float16), random(rows, width)
    with ThreadPoolExecutor(16) as pool:
        asked = [(way, gated) for way in ways for gated in (True, False)]
        cubins = dict(zip(asked, pool.map(lambda one: built(one[0], gated=one[1])[0], asked), strict=True))
    both = x.double() @ sets[0][0].double().flatten(0, 1).T
    right_h = torch.nn.functional.silu(both[:, :hidden]) * both[:, hidden:]
    found, graphs = dict[str, Any](), dict[str, Any]()
    keep = []
    for way in ways:
        for early in (False, True):
            name = way.name + (" early" if early else "")
            counts = {True: 2 * hidden // 64 // way.groups, False: width // 64 // way.groups}
            first, second = (Product(way, cubins[way, gated], counts[gated], early=early) for gated in (True, False))
            launches = [(first.bound(gate_up, x, h), second.bound(down, h, y)) for gate_up, down in sets]
            errors = []
            for _ in range(2):
                h.fill_(float("nan")), y.fill_(float("nan"))
                launches[0][0](), launches[0][1](), torch.cuda.synchronize()
                right_y = h.double() @ sets[0][1].double().T
                pairs = ((h, right_h), (y, right_y))
                errors += [float((a.double() - b).norm() / b.norm()) for a, b in pairs]
            found[name] = {} if way.left_out else {"error": float(f"{max(errors):.3g}")}
            if not max(errors) < 2e-3 and not way.left_out:
                continue
            found[name]["cycles"] = [cycles_of(first.stamps), cycles_of(second.stamps)]
            keep.append(launches)
            graphs[name] = captured([one for pair in launches for one in pair])
            if not early:
                graphs[name + " first"] = captured([first for first, _ in launches])
                graphs[name + " second"] = captured([second for _, second in launches])
    graphs["torch first"] = captured([partial(torch.nn.functional.linear, x, w.flatten(0, 1)) for w, _ in sets])
    graphs["torch second"] = captured([partial(torch.nn.functional.linear, h, w) for _, w in sets])
    for name, taken in samples_us(graphs, SETS, ROUNDS).items():
        found.setdefault(name, {})["us"] = round(median(taken), 2)
    return found
