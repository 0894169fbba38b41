"""Chains with norms and residuals: every engine compiles them without warnings, and the host lays out what the device
reads."""

from __future__ import annotations

import pytest

from tests.support.cases import H200, adds, gemms, simt, wgmma
from tests.support.chains import block, run_of_block
from tests.support.lanes import soak_unless
from tests.support.presets import decoder_block
from tests.support.reports import report_of
from tuner.core.legal.legality import dynamic_smem_bytes, tiling_problem
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.tiling import Engine, Epilogue, Tile, Tiling, Warpgroups
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.builder.artifact import least_driver
from tuner.workers.builder.listed import tensors_of
from tuner.workers.source.launch_args import parameter_layout
from tuner.workers.source.render import render

#: Shapes of a model: four ops at 16 rows.
DECODE = block(16, heads=4096, width=4096, hidden=14336, qkv=6144)
SHARD = block(64, heads=1024, width=8192, hidden=3584, qkv=1280, dtype=Dtype.BF16)
ONE_ROW = block(1, heads=1024, width=8192, hidden=3584, qkv=1280)


def mma(*tiles: tuple[int, int, int], **fields: object) -> Tiling:
    whole = tuple(Tile(m=m, n=n, k=k) for m, n, k in tiles)
    return Tiling(tiles=whole, **{"num_stages": 3, "num_warps": 4, **fields})  # type: ignore[arg-type]


#: Ways in which a tile writes sums of squares, or gets its factors; tests/soak/kernels.py compiles everything that runs
#: on a card.
CASES = {
    "wgmma": (
        DECODE,
        wgmma(
            *((16, 32, 256), (16, 56, 128), (16, 32, 256), (16, 48, 256)),
            num_stages=6,
            input_stages=4,
            startup_prefetch=4,
        ),
    ),
    "parts": (
        DECODE,
        wgmma(*((16, 64, 128),) * 4, num_stages=6, input_stages=6, split_k=(2, 1, 3, 2)),
    ),
    "shared_k": (
        SHARD,
        wgmma(
            *((64, 64, 128), (64, 56, 128), (64, 64, 128), (64, 32, 128)),
            num_stages=4,
            input_stages=4,
            cluster_k=2,
        ),
    ),
    "swapped_shared_k": (
        SHARD,
        wgmma(*((64, 128, 64), (64, 56, 64), (64, 128, 64), (64, 128, 64)), num_warps=8, swap_ab=True, cluster_k=2),
    ),
    "swapped_shared_k, many rows": (  # so large that the compiler did not inline a function
        decoder_block("llama3-8b", m=512),
        wgmma(
            *((256, 128, 64), (256, 56, 64), (256, 128, 64), (256, 112, 64)),
            num_warps=8,
            num_stages=3,
            swap_ab=True,
            cluster_k=2,
        ),
    ),
    "ping_pong": (
        block(512),
        wgmma(*((64, 128, 64), (64, 112, 64)) * 2, num_warps=8, warpgroups=Warpgroups.PING_PONG),
    ),
    "copied": (
        block(512),
        wgmma(*((128, 176, 64), (128, 88, 64), (128, 128, 64), (128, 40, 64)), num_warps=8, epilogue=Epilogue.TMA),
    ),
    "in_band": (
        ONE_ROW,
        wgmma(
            *((16, 64, 128), (16, 56, 128), (16, 64, 128), (16, 40, 256)),
            num_stages=6,
            input_stages=6,
            split_k=(1, 2, 1, 4),
            in_band=True,
        ),
    ),
    "in_band, swapped, ahead": (
        ONE_ROW,
        wgmma(
            *((8, 64, 128), (8, 32, 128), (8, 64, 128), (8, 16, 512)),
            num_stages=6,
            input_stages=6,
            swap_ab=True,
            ahead_window=2,
            in_band=True,
        ),
    ),
    "in_band, the maximum number of sums": (
        ONE_ROW,
        wgmma(
            *((16, 128, 64), (16, 64, 64), (16, 128, 64), (16, 128, 64)),
            num_stages=6,
            input_stages=8,
            split_k=(2, 4, 8, 8),
            in_band=True,
        ),
    ),
    "mma": (block(40), mma(*((16, 64, 64),) * 4, split_k=(1, 1, 3, 1))),
    "swapped_alone": (
        decoder_block("llama3-8b", m=1, dtype=Dtype.BF16),
        wgmma((8, 32, 512), (8, 56, 128), (8, 32, 512), (8, 48, 256), input_stages=4, swap_ab=True),
    ),
    "simt": (block(3), simt(*((4, 16, 256), (4, 8, 256)) * 2, num_warps=4)),
}


#: One chain for each engine; the first is the longest possible one.
IN_CI = ("swapped_shared_k", "wgmma", "mma")


@pytest.mark.parametrize("name", soak_unless(lambda _, name: name in IN_CI, CASES))
def test_a_chain_compiles_without_spills_or_warnings(name: str) -> None:
    workload, tiling = CASES[name]
    assert tiling_problem(workload, H200, tiling) is None
    resources = report_of(render(workload, tiling) + asserted(workload, tiling), "sm_90a").resources
    assert (resources.spill_bytes, resources.warnings) == (0, ())


@pytest.mark.parametrize("name", soak_unless(lambda _, name: name == "simt", ["mma", "simt"]))
def test_the_older_engines_compile_for_the_oldest_architecture(name: str) -> None:
    assert report_of(render(*CASES[name]), "sm_80").resources.spill_bytes == 0


def asserted(workload: Workload, tiling: Tiling) -> str:
    """Asserts that the device's sizes equal the host's."""
    layout = parameter_layout(workload, tiling, 1)
    struct = "WgmmaArgs" if tiling.engine is Engine.WGMMA else "LaunchArgs"
    lines = [f"static_assert(sizeof({struct}) == {layout['size_bytes']});"]
    if tiling.engine is Engine.WGMMA:
        lines += [f"static_assert(SharedLayout::kBeside + Beside::kBytes == {dynamic_smem_bytes(workload, tiling)});"]
    return "\n".join(["", *lines, ""])


def test_a_pair_has_nothing_of_it() -> None:
    source = render(*_pair())
    assert "#define TUNER_CHAIN_OPS" not in source
    names = {field["name"] for field in parameter_layout(*_pair(), 1)["fields"]}
    assert not any(name.endswith((".squares", ".eps", ".num_slots")) for name in names)


def _pair() -> tuple[Workload, Tiling]:
    return ffn_pair(m=16, d_in=256, d_hidden=512, d_out=256, residual=True, row_scale=True), wgmma((16, 64, 64))


def chain_ops(workload: Workload, tiling: Tiling) -> str:
    line = next(line for line in render(workload, tiling).splitlines() if line.startswith("constexpr ChainOp"))
    return line.partition(" = ")[2]


def test_what_an_op_has_beside_is_in_the_generated_text() -> None:
    """The text says whether an op is normed, stores sums of squares, adds another op's output, and has its residual
    when its first inputs arrive."""
    first, third = "{false, true, false, true}", "{false, true, true, true}"
    assert (
        chain_ops(*CASES["wgmma"])
        == f"{{{first}, {{true, false, false, false}}, {third}, {{true, false, false, false}}}};"
    )


def test_a_residual_that_the_first_inputs_do_not_stand_for_is_not_early() -> None:
    """Three residuals arrive late: one that the op also reads as A (part of a tile waits only for its own columns), one
    that is computed in parallel with A, and one on which A depends if A is read in band."""
    x, adds_a = ("a", "x", 64, 64, {}), ("b", "a", 64, 64, adds("a"))
    beside = gemms(8, x, ("b", "x", 64, 64, {}), ("c", "b", 64, 64, adds("a")))
    above = gemms(8, x, ("b", "a", 64, 64, {}), ("c", "b", 64, 64, adds("a")))
    tile, early = (8, 64, 64), {True: "true, true}};", False: "true, false}};"}
    for workload, in_band, is_early in (
        (gemms(8, x, adds_a), False, False),
        (beside, False, False),
        (above, False, True),
        (above, True, False),
    ):
        tiling = wgmma(*[tile] * len(workload.tile_ops), swap_ab=True, in_band=in_band)
        assert chain_ops(workload, tiling).endswith(early[is_early])


def test_four_ops_fit_the_parameter_that_every_driver_takes() -> None:
    assert parameter_layout(*CASES["wgmma"], 1)["size_bytes"] == 4032


def test_a_larger_parameter_needs_a_newer_driver() -> None:
    assert least_driver("12.9", 4096) == "525.60.13"
    assert least_driver("12.9", 4097) == "530.30.02"
    assert least_driver("13.0", 5000) == "580.65.06"
    assert least_driver("", 5000) == ""


def test_a_manifest_names_the_tables_and_who_points_at_them() -> None:
    layout = {field["name"]: field for field in parameter_layout(*CASES["parts"], 1)["fields"]}
    assert layout["o.squares"]["tensor"] == layout["gate_up.row_scale"]["tensor"] == "o.squares"
    assert layout["down.residual"]["tensor"] == "o"
    assert "tensor" not in layout["o.residual"]
    assert float(layout["qkv.eps"]["meaning"]) == DECODE.tile_ops[3].eps
    assert int(layout["gate_up.num_slots"]["meaning"]) == 64
    tensors = {tensor["name"]: tensor for tensor in tensors_of(*CASES["parts"], [])}
    assert tensors["o.squares"]["shape"] == [64, 16]
    assert (tensors["o"]["role"], tensors["gate_up"]["role"]) == ("output", "intermediate")
    assert "down.residual" not in tensors
    run = tensors_of(run_of_block(13), wgmma((16, 56, 64), (16, 64, 64)), [])
    assert next(tensor["shape"] for tensor in run if tensor["role"] == "input_squares") == [16]
