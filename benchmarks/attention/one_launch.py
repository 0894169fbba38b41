"""Attention and projection in one launch, beside two programmatic ones and the library: attention_one_launch.json.

An experiment, no plan kind: one_launch_kernel.py says what runs. All CTAs are resident at once. Numbers are checked,
and bits of launches that overlap, before anything is timed. Of the variants some are drawn.

About 15 seconds a row.

python -m benchmarks.attention.one_launch [--row llama3-8b/1/512 ...] [--seconds 200] [--out FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import random
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver

from benchmarks.common.report import rows_of_this_build, write_report
from tuner.core.problem.gpu import Gpu
from tuner.core.trial.stats import median
from tuner.errors import TunerError
from tuner.ops.attention.source import (
    NO_WEIGHTS,
    STATUS_WORDS,
    AttentionBuffers,
    cache_map,
    pack_attention_args,
)
from tuner.ops.gemm.card.cublaslt import CublasLt
from tuner.workers.gpu.launching.launch import check, launch_config, prefer_shared_memory, programmatic_attribute
from tuner.workers.gpu.launching.tensor_maps import encode
from tuner.workers.source.launch_args import OpBuffers
from tuner.workers.source.render import SIGNALS_OFFSET_BYTES
from tuner.workers.source.tensor_maps import tensor_maps

from .measure import bandwidth_here, gpu_here, machine_here
from .on_card import make_current
from .one_launch_kernel import ALIGNMENT, KERNEL, Made, OneVariant, build, make, one_variants, product_args
from .pair_on_card import LibraryPair, PairTensors, Workshop
from .pair_rows import floor_us, pair_variants
from .pairs import _libraries, _ours
from .rows import Row, rows
from .timing import samples_us

ROWS = (
    "llama3-70b-tp8/1/512",
    "llama3-70b-tp8/16/2048",
    "llama3-8b/1/512",
    "llama3-70b-tp8/1/2048",
    "llama3-70b-tp8/16/512",
    "llama3-8b/1/2048",
    "llama3-70b-tp8/64/512",
    "llama3-8b/16/512",
    "llama3-70b-tp8/16/1-4096",
    "llama3-8b/16/2048",
)
_ROUNDS, _FINAL_ROUNDS, _FINALISTS = 8, 40, 3
_BUILDS_AT_ONCE = 14
#: Variants that are drawn where there are more, by the CTAs of an SM; with warps of both roles in a CTA the first.
_MOST_VARIANTS = {0: 36, 2: 20, 1: 16}


def main(arguments: Sequence[str] | None = None) -> None:
    """Rows until the time is over; what is there is written after each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", action="append")
    parser.add_argument("--seconds", type=float, default=200)
    pairs = [Path(f"benchmarks/results/{gpu}/attention_pairs.json") for gpu in ("h100", "h200")]
    parser.add_argument("--known", type=Path, nargs="*", default=pairs)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h100/attention_one_launch.json"))
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    make_current()
    torch.manual_seed(0)
    gpu, lt, machine = gpu_here(), CublasLt(), machine_here()
    done = rows_of_this_build(options.out, machine)
    bytes_per_s = bandwidth_here()
    known: dict[str, list[str]] = {}
    for path in options.known:
        for found in json.loads(path.read_text())["rows"]:
            known.setdefault(found["row"], []).append(found["best"]["two_launches_pdl"])
    by_name = {row.name: row for row in rows()}
    with contextlib.closing(Workshop(gpu, _BUILDS_AT_ONCE)) as workshop:
        for name in options.row or ROWS:
            if name in {one["row"] for one in done}:
                continue
            if time.monotonic() - begin > options.seconds:
                break
            try:
                done.append({"row": name, **measure_row(by_name[name], workshop, lt, known[name], bytes_per_s)})
            except Exception as error:
                print(f"== {name}: {error!r}", flush=True)
                traceback.print_exc()
                continue
            print(json.dumps(done[-1])[:2500], f"at {time.monotonic() - begin:.0f} s", flush=True)
            write_report(options.out, done, {**machine, "bytes_per_s": bytes_per_s})


def measure_row(row: Row, workshop: Workshop, lt: CublasLt, known: list[str], bytes_per_s: float) -> dict[str, Any]:
    """The library, the fastest two launches that are known, and all variants of one launch, in turns.

    Raises:
        TunerError: nothing of it came through.
    """
    tensors, failed = PairTensors(row), dict[str, str]()
    library = LibraryPair(tensors, lt)
    graphs, _ = _libraries(library, failed)
    _, pair_graphs, _ = _ours(
        tensors, [one for one in pair_variants(row, workshop.gpu) if str(one) in known], workshop, failed
    )
    ones, own, errors = _launches(tensors, _drawn(list(one_variants(row, workshop.gpu))), workshop.gpu, failed)
    if not ones or not pair_graphs:
        raise TunerError(f"nothing to compare: {failed}")
    tried = {name: median(us) for name, us in samples_us(own, tensors.num_pairs, _ROUNDS).items()}
    ranked = sorted(tried, key=lambda name: tried[name])
    finalists = ranked[:_FINALISTS]
    for name in finalists:
        _check_bits(tensors, ones[name], own[name])
    again = {**graphs, **pair_graphs, **{name: own[name] for name in finalists}}
    us = {name: median(found) for name, found in samples_us(again, tensors.num_pairs, _FINAL_ROUNDS).items()}
    best_library = min(us[name] for name in graphs)
    return {
        "library_us": round(best_library, 2),
        "two_launches_pdl_us": round(min(us[name] for name in pair_graphs), 2),
        "one_launch_us": round(min(us[name] for name in finalists), 2),
        "best": {
            "two_launches_pdl": min(pair_graphs, key=lambda name: us[name]),
            "one_launch": min(finalists, key=lambda name: us[name]),
        },
        "floor_us": round(floor_us(row, bytes_per_s), 2),
        "rel_error": max(errors[name] for name in finalists),
        "finals_us": {name: round(value, 2) for name, value in us.items()},
        "variants_us": {name: round(tried[name], 2) for name in ranked},
        "failed": failed,
    }


def _launches(
    tensors: PairTensors, variants: list[OneVariant], gpu: Gpu, failed: dict[str, str]
) -> tuple[dict[str, OneLaunch], dict[str, torch.cuda.CUDAGraph], dict[str, float]]:
    """Launches, their graphs and errors; failures are added to."""
    launches, graphs, errors = dict[str, OneLaunch](), dict[str, torch.cuda.CUDAGraph](), dict[str, float]()
    with ThreadPoolExecutor(_BUILDS_AT_ONCE) as threads:
        built = list(threads.map(lambda one: _built(tensors.row, one, gpu), variants))
    for variant, made in zip(variants, built, strict=True):
        name = str(variant)
        if isinstance(made, str):
            failed[name] = made
            continue
        try:
            one = OneLaunch(tensors, variant, *made)
            graph = tensors.graph_of(one.launch)
            tensors.poison()
            graph.replay()
            torch.cuda.synchronize()
            if record := one.aborted():
                raise TunerError(record)
            off = tensors.error()
            if not off < 0.02:
                raise TunerError(f"wrong numbers: the relative error is {off}")
            launches[name], graphs[name], errors[name] = one, graph, off
        except (TunerError, RuntimeError) as error:
            failed[name] = repr(error)[:300]
    return launches, graphs, errors


def _check_bits(tensors: PairTensors, one: OneLaunch, graph: torch.cuda.CUDAGraph) -> None:
    """That launches which overlap leave the bits that they leave one by one: no launch reads or writes too early.

    Raises:
        TunerError: they do not.
    """
    expected = one.bits_one_by_one()
    for _ in range(10):
        tensors.poison()
        graph.replay()
    torch.cuda.synchronize()
    for slot, (given, wanted) in enumerate(zip(tensors.results, expected, strict=True)):
        if not torch.equal(given.view(torch.int16), wanted.view(torch.int16)):
            raise TunerError(f"{one.variant}: slot {slot} has other bits where launches overlap")


def _drawn(variants: list[OneVariant]) -> list[OneVariant]:
    """As many of each way to share an SM."""
    drawn = random.Random(0)
    found: list[OneVariant] = []
    for ctas_per_sm, most in _MOST_VARIANTS.items():
        own = [one for one in variants if one.ctas_per_sm == ctas_per_sm]
        found += drawn.sample(own, min(most, len(own)))
    return found


def _built(row: Row, variant: OneVariant, gpu: Gpu) -> tuple[Made, bytes] | str:
    """What is launched, and its cubin; or why there is none."""
    try:
        made = make(row, variant, gpu)
        return made, build(made.source)
    except TunerError as error:
        return repr(error)[:300]


class OneLaunch:
    """A loaded kernel with its plans and its workspaces."""

    def __init__(self, tensors: PairTensors, variant: OneVariant, made: Made, cubin: bytes) -> None:
        """Loads.

        Raises:
            TunerError: the card does not hold its CTAs at once.
        """
        self.tensors, self.variant, self.made, self._cubin = tensors, variant, made, cubin
        op, tiling = tensors.row.op, variant.attention.tiling
        self._module = check(driver.cuModuleLoadData(cubin))
        self.function = check(driver.cuModuleGetFunction(self._module, KERNEL.encode()))
        attributes = driver.CUfunction_attribute
        check(
            driver.cuFuncSetAttribute(
                self.function, attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, made.smem_bytes
            )
        )
        prefer_shared_memory(self.function)
        self.num_ctas = made.num_ctas
        config = launch_config(tiling.cluster, made.num_threads, made.smem_bytes, 0)
        if tiling.cluster > 1:
            held = int(check(driver.cuOccupancyMaxActiveClusters(self.function, config))) * tiling.cluster
        else:
            of_sm = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, made.num_threads, made.smem_bytes)
            held = int(check(of_sm)) * torch.cuda.get_device_properties(0).multi_processor_count
        if self.num_ctas > held:
            raise TunerError(f"the grid has {self.num_ctas} CTAs, and the card holds {held}")
        plan = made.attention
        self._tasks = torch.from_numpy(plan.tasks.copy()).cuda()
        self._queues = torch.from_numpy(plan.queues.copy()).cuda()
        floats = plan.num_slots * plan.num_spans * tiling.partial_floats if plan.num_spans > 1 else 4
        self._partials = torch.full((floats,), float("nan"), device="cuda")
        self._arrivals = torch.zeros(plan.num_counters, dtype=torch.int32, device="cuda")
        self._refused = torch.zeros(STATUS_WORDS, dtype=torch.int32, device="cuda")
        self._map = cache_map(op, tiling, tensors.row.form.paged)
        self._words = torch.from_numpy(made.product.words.copy()).cuda()
        self._workspace = torch.zeros(
            SIGNALS_OFFSET_BYTES // 4 + made.product.plan.num_signals + 64, dtype=torch.int32, device="cuda"
        )

    def aborted(self) -> str:
        """What a launch gave up waiting for."""
        words = self._workspace[32:38].tolist()
        return f"aborted: {words}" if words[0] else ""

    def launch(self, slot: int) -> None:
        """On PyTorch's current stream."""
        tensors, made, row = self.tensors, self.made, self.tensors.row
        gemm = tensors.workload.tile_ops[0]
        keys, values = tensors.own_caches[slot]
        given = OpBuffers(
            a=tensors.attended.data_ptr(),
            w=tensors.weights[slot].data_ptr(),
            bias=0,
            c=tensors.results[slot].data_ptr(),
            m=gemm.m,
            n=gemm.n,
            k=gemm.k,
        )
        maps = tensor_maps(made.product.graph.workload, made.product.graph.tiling)
        encoded = tuple(encode(one, row.op.dtype, getattr(given, one.operand)) for one in maps)
        product = product_args(made.product, self._words.data_ptr(), self._workspace.data_ptr(), given, encoded)
        assert len(product) == made.product_bytes
        promotion = self.variant.attention.promotion_bytes
        buffers = AttentionBuffers(
            k=encode(self._map, row.op.dtype, keys.data_ptr(), promotion),
            v=encode(self._map, row.op.dtype, values.data_ptr(), promotion),
            q=tensors.q.data_ptr(),
            out=tensors.attended.data_ptr(),
            lengths=tensors.lengths.data_ptr(),
            tasks=self._tasks.data_ptr(),
            queues=self._queues.data_ptr(),
            partials=self._partials.data_ptr(),
            arrivals=self._arrivals.data_ptr(),
            trace=0,
            refused=self._refused.data_ptr(),
            pages=0 if tensors.pages is None else tensors.pages.data_ptr(),
        )
        attention = pack_attention_args(
            made.attention, buffers, speculative=self.variant.attention.speculative, next_weights=NO_WEIGHTS
        )
        tile_m = made.product.graph.tiling.cta_tiles[0].m
        posts = np.array([self._workspace.data_ptr() + SIGNALS_OFFSET_BYTES], dtype=np.uint64).tobytes()
        posts += np.array([tile_m // row.op.new_tokens, 0], dtype=np.int32).tobytes()
        args = product + attention + posts
        args += bytes(-len(args) % ALIGNMENT)
        kept = ctypes.create_string_buffer(args, len(args))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(kept))
        stream = torch.cuda.current_stream().cuda_stream
        config = launch_config(self.num_ctas, made.num_threads, made.smem_bytes, stream)
        config.attrs = [programmatic_attribute()]
        config.numAttrs = len(config.attrs)
        check(driver.cuLaunchKernelEx(config, self.function, ctypes.addressof(pointers), 0))

    def bits_one_by_one(self) -> list[torch.Tensor]:
        """Each slot's result where every launch has the card for itself."""
        for slot in range(self.tensors.num_slots):
            self.launch(slot)
            torch.cuda.synchronize()
        return [result.clone() for result in self.tensors.results]


if __name__ == "__main__":
    main()
