"""Digests of the machine code of kernels of every engine and form, and of what each is compiled from; a change that
should not affect them must leave them equal.

The machine code is a function of the source without its comments, the architecture, the options and the compiler's
version. So a kernel whose inputs have the recorded digest has the recorded code, and tests compile only the others.
`make golden` compiles all kernels.

python -m tests.compile.machine_code    renews tests/compile/machine_code.json, as `make golden` does. A change to
device code should renew only the lines of its own kernels.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.compile import golden
from tests.support import conv_pairs, converted, convs, operands, quantised
from tests.support.compiled import compile_source
from tests.support.conformance import attention, between, chains, in_band, turned
from tests.support.reports import inputs_digest, machine_code
from tuner.core.problem.op_kinds import folder_of
from tuner.core.problem.ops.kv_cache import PagedCache
from tuner.core.problem.workload import Workload
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.reports.same_kernels import FILE as SAME
from tuner.core.trial.reports.same_kernels import lists_of, with_version
from tuner.ops.attention.append import render_append
from tuner.ops.attention.shapes.shape import DecodeAttention
from tuner.ops.attention.source import source_of, version
from tuner.ops.conv.pair.source import source_of as source_of_pair
from tuner.ops.gemm.quantised import Scheme
from tuner.workers.builder.nvrtc import nvrtc_version
from tuner.workers.source.render import kernel_version, render
from tuner.workers.source.variants import Variant

FILE = Path(__file__).with_suffix(".json")
ARCH = "sm_90a"
_PAGED = DecodeAttention(sequences=3, kv_heads=2, query_heads=4, head_dim=128, max_length=40)


def _product(schedule: Schedule, workload: Workload) -> str:
    return render(workload, schedule.tiling)


def _attention(schedule: Schedule, form: str = "", traced_tasks: int = 0) -> str:
    (op,) = (attention.FORMS[form] if form else attention.WORKLOADS["of 128"]).launch_ops
    return source_of(op, schedule.launch_ops[0], traced_tasks=traced_tasks)


_BY_MMA = attention.by_mma(attention.SCHEDULES)
_CONV_PAIRS = {
    "strides": "128 between, both strides",
    "added": "an added image, filters shared, silu",
    "shared": "its own images are added, pixels shared, bf16",
}
_CLUSTER = convs.BY_WARPGROUPS["a cluster, stored by TMA, a product"]


def _converted(name: str) -> str:
    scheme, tiling = converted.TILINGS[name]
    return render(converted.pair(scheme), tiling)


def _blocks(name: str) -> str:
    return render(quantised.pair(Scheme.BLOCK, 13, 512, 256), quantised.BLOCK_TILINGS[name])


#: By name, the function that returns the source.
SOURCES = {
    **{name: partial(render, *case) for name, case in golden.CASES.items()},
    "wgmma_guarded": partial(render, *golden.CASES["wgmma_decode"], variant=Variant.GUARDED),
    "wgmma_safe": partial(render, *golden.CASES["wgmma_cluster"], variant=Variant.SAFE),
    "wgmma_traced": partial(render, *golden.CASES["wgmma_swapped"], traced=True),
    "mma_guarded": partial(render, *golden.CASES["mma_gated_split"], variant=Variant.GUARDED),
    "simt_traced": partial(render, *golden.CASES["simt_one_row"], traced=True),
    "wgmma_in_band": partial(_product, in_band.banded(in_band.OF_PAIRS)["swapped, parts"], in_band.PAIR),
    "wgmma_chain": partial(_product, chains.SHAPES["wgmma, parts"], chains.BLOCK),
    "mma_chain": partial(_product, chains.SHAPES["mma"], chains.BLOCK),
    "wgmma_rotary": partial(_product, chains.SHAPES["swapped, shared k"], turned.TURNED),
    "mma_rotary_pages": partial(
        _product, chains.SHAPES["mma, parts"], replace(between.TOKENS_FIRST, ops=between.TOKENS_FIRST.tile_ops)
    ),
    "simt_rotary": partial(_product, chains.DOTS["simt"], turned.FEW),
    "converted_e4m3": partial(_converted, "e4m3"),
    "converted_blocks": partial(_converted, "blocks"),
    "converted_int4": partial(_converted, "int4"),
    "converted_int4_mma": partial(_converted, "int4, mma"),
    "converted_zero_points": partial(_converted, "int4, zero points, many rows"),
    "converted_mxfp4": partial(_converted, "mxfp4, many rows"),
    "converted_w4a8": partial(_converted, "w4a8, many rows"),
    "quantised_blocks": partial(_blocks, "plain"),
    "quantised_blocks_wide": partial(_blocks, "wide, two warpgroups"),
    "quantised_pieces": partial(render, quantised.grouped("wide, gated"), quantised.BLOCK_TILINGS["wide"]),
    "quantised_chain": partial(render, operands.block(13, weights="e4m3_g128"), operands.GROUPED["plain"]),
    "conv_mma": partial(render, *convs.SHORTCUT),
    "conv_mma_parts": partial(render, *convs.bottleneck()),
    "conv_wgmma": partial(render, *convs.BY_WARPGROUPS["a stride, a shortcut"]),
    "conv_wgmma_swapped": partial(render, *convs.BY_WARPGROUPS["swapped, 5x5, parts"]),
    "conv_wgmma_guarded": partial(render, *_CLUSTER, variant=Variant.GUARDED),
    **{f"conv_pair_{name}": partial(source_of_pair, *conv_pairs.CASES[case]) for name, case in _CONV_PAIRS.items()},
    "append": partial(render_append, _PAGED),
    "append_pages": partial(render_append, _PAGED, PagedCache(num_pages=9, page_tokens=16, heads_first=False)),
    "attention_tma": partial(_attention, attention.SCHEDULES["spans"]),
    "attention_tma_cluster": partial(_attention, attention.SCHEDULES["cluster of 8"]),
    "attention_tma_all": partial(_attention, attention.WAITING["cluster of 4, spans"], "all of them"),
    "attention_tma_traced": partial(_attention, attention.SCHEDULES["few warps"], traced_tasks=4),
    "attention_mma": partial(_attention, _BY_MMA["spans, by cp.async"]),
    "attention_mma_pages": partial(_attention, _BY_MMA["few warps, by cp.async"], "pages of 32, tokens first"),
}


#: Kernels with text of several kinds.
_MIXED = ("conv_", "mma_rotary_pages")


def digest_of(name: str) -> str:
    """The digest of the named kernel as this compiler builds it."""
    return machine_code(compile_source(SOURCES[name](), ARCH)[0])


def inputs_of(name: str) -> str:
    """A digest (16 hex digits) of everything that the machine code of the named kernel depends on."""
    return inputs_digest(SOURCES[name](), ARCH)


def versions() -> dict[str, str]:
    """The current version of each kind's device text."""
    return {"gemm": kernel_version(), "attention": version()}


def kind_of(name: str) -> str:
    """The kind that owns a kernel; empty if the kernel's version is a digest of several texts, as for a convolution or
    a product that writes to pages."""
    return "" if name.startswith(_MIXED) else "attention" if name.startswith(("attention", "append")) else "gemm"


def is_same(before: dict[str, str], kernels: dict[str, str], kind: str) -> bool:
    """Whether the kind's kernels have the machine code that they had before; one that was not recorded says nothing."""
    return all(before.get(name, code) == code for name, code in kernels.items() if kind_of(name) == kind)


def note(before: dict[str, Any], kernels: dict[str, str]) -> None:
    """Records, for each kind, the versions under which its kernels have their current machine code."""
    for kind, now in versions().items():
        lists = with_version(
            lists_of(kind), before["versions"][kind], now, is_same=is_same(before["kernels"], kernels, kind)
        )
        path = folder_of(kind) / SAME
        path.write_text(json.dumps(lists, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Writes the file and records the versions whose machine code is the same."""
    before, kernels = json.loads(FILE.read_text()), {name: digest_of(name) for name in SOURCES}
    compiler = nvrtc_version()
    if compiler == before["compiler"]:  # otherwise all code would differ
        note(before, kernels)
    inputs = {name: inputs_of(name) for name in SOURCES}
    written = {"compiler": compiler, "arch": ARCH, "versions": versions(), "inputs": inputs, "kernels": kernels}
    FILE.write_text(json.dumps(written, indent=1) + "\n")
    print(f"wrote {len(SOURCES)} digests to {FILE}")


if __name__ == "__main__":
    main()
