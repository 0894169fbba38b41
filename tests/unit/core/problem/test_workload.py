from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given

from tests.support.cases import chain_of_three, fork, workloads
from tuner.core.problem.tile_op import MAX_ELEMENTS
from tuner.core.problem.workload import Activation, Dtype, Workload, WorkloadKind
from tuner.errors import InvalidInput
from tuner.ops.gemm.op import GemmOp
from tuner.ops.gemm.pairs import ffn_pair, independent_pair


@given(workloads())
def test_a_workload_survives_json(workload: Workload) -> None:
    back = Workload.from_json(json.loads(json.dumps(workload.to_json())))
    assert back == workload
    assert back.digest == workload.digest


@pytest.mark.parametrize("field", ["m", "d_in", "d_hidden", "d_out"])
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_below_one_are_refused(field: str, value: int) -> None:
    with pytest.raises(InvalidInput, match=f"must be at least 1, got {value}"):
        ffn_pair(**{"m": 16, "d_in": 16, "d_hidden": 16, "d_out": 16, field: value})


def test_a_matrix_beyond_32_bit_indices_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"up\.C: 65536 x 32768 elements overflow") as caught:
        ffn_pair(m=65536, d_in=1, d_hidden=32768, d_out=1)
    assert caught.value.field == "up.C"
    assert caught.value.remedy


def test_a_consumer_must_fit_its_producer() -> None:
    first = GemmOp(name="a", m=8, n=16, k=8)
    for m, k in ((9, 16), (8, 17)):
        reader = GemmOp(name="b", m=m, n=8, k=k, source="a")
        with pytest.raises(InvalidInput, match=r"b\.k: reads a as"):
            Workload(kind=WorkloadKind.CHAIN, ops=(first, reader))


def test_names_are_unique_and_there_is_an_op() -> None:
    op = GemmOp(name="a", m=8, n=8, k=8)
    with pytest.raises(InvalidInput, match="used twice"):
        Workload(kind=WorkloadKind.CHAIN, ops=(op, op))
    with pytest.raises(InvalidInput, match="no op"):
        Workload(kind=WorkloadKind.CHAIN, ops=())


def test_producers_and_consumers_follow_from_names() -> None:
    chain, branches = chain_of_three(8, (8, 8, 8, 8)), fork(8, (8, 8, 8, 8))
    assert [chain.producer_of(op) for op in range(3)] == [None, 0, 1]
    assert [branches.producer_of(op) for op in range(3)] == [None, 0, 0]
    assert [branches.consumers_of(op) for op in range(3)] == [(1, 2), (), ()]


def test_compulsory_bytes_leave_the_intermediate_out() -> None:
    pair = ffn_pair(m=2, d_in=3, d_hidden=5, d_out=7, bias=True)
    assert pair.compulsory_bytes == 2 * (2 * 3 + 5 * 3 + 5 + 7 * 5 + 7 + 2 * 7)
    assert pair.num_flops == 2 * (2 * 3 * 5 + 2 * 5 * 7)
    assert independent_pair((2, 3, 5), (7, 11, 13)).compulsory_bytes == 2 * (
        2 * 5 + 3 * 5 + 2 * 3 + 7 * 13 + 11 * 13 + 7 * 11
    )


def test_a_gated_op_has_twice_the_weights_products_and_biases() -> None:
    plain, gated = (ffn_pair(m=2, d_in=3, d_hidden=5, d_out=7, bias=True, gated=gated) for gated in (False, True))
    assert gated.weight_bytes - plain.weight_bytes == 2 * 5 * 3
    assert gated.num_flops - plain.num_flops == 2 * 2 * 5 * 3
    assert gated.compulsory_bytes - plain.compulsory_bytes == 2 * (5 * 3 + 5)


def test_a_residual_and_a_row_scale_are_read_once() -> None:
    sizes = {"m": 2, "d_in": 3, "d_hidden": 5, "d_out": 7}
    plain = ffn_pair(**sizes)
    assert ffn_pair(**sizes, residual=True).compulsory_bytes == plain.compulsory_bytes + 2 * 2 * 7
    assert ffn_pair(**sizes, row_scale=True).compulsory_bytes == plain.compulsory_bytes + 4 * 2


def test_a_gates_rows_count_towards_the_largest_matrix() -> None:
    sizes = {"m": 1, "d_in": 32768, "d_hidden": 32768, "d_out": 1}
    ffn_pair(**sizes)
    with pytest.raises(InvalidInput, match=r"up\.W: 65536 x 32768 elements overflow"):
        ffn_pair(**sizes, gated=True)


def test_workloads_of_before_gates_read_back_and_keep_their_digests() -> None:
    pair = ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096, activation=Activation.SILU)
    assert pair.digest == "3dfee6b810739a97"
    for name in ("gated", "residual", "row_scale"):
        assert not any(name in op for op in pair.to_json()["ops"])
        assert replace(pair, ops=(replace(pair.tile_ops[0], **{name: True}), pair.tile_ops[1])).digest != pair.digest


def test_a_workload_describes_itself() -> None:
    pair = ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096, dtype=Dtype.BF16)
    assert pair.describe() == "ffn bf16 M=16 4096 -> 14336 -> 4096"
    gated = replace(
        pair, ops=(replace(pair.tile_ops[0], gated=True, row_scale=True), replace(pair.tile_ops[1], residual=True))
    )
    assert gated.describe() == f"{pair.describe()} gated residual row_scale"
    assert independent_pair((1, 2, 3), (4, 5, 6)).describe() == "independent fp16 [1, 2, 3] beside [4, 5, 6]"


def gemm(name: str, source: str = "x", **options: object) -> GemmOp:
    return GemmOp(name=name, m=16, n=32, k=32, source=source, **options)  # type: ignore[arg-type]


def chain(*ops: GemmOp) -> Workload:
    return Workload(kind=WorkloadKind.CHAIN, ops=ops)


def test_an_op_that_reads_a_later_one_is_refused() -> None:
    """It would be treated as a reader of the later op, whose tiles come after its own."""
    with pytest.raises(InvalidInput, match="a reads b, which a later op writes; list the ops in topological order"):
        chain(gemm("a", "b"), gemm("b"))
    with pytest.raises(InvalidInput, match="a adds b, which a later op writes"):
        chain(gemm("a", residual=True, residual_source="b"), gemm("b"))
    with pytest.raises(InvalidInput, match="a norms b, which a later op writes"):
        chain(gemm("a", norm="b"), gemm("b"))


def test_a_cycle_is_named_op_by_op() -> None:
    cycle = "ops: a cycle: a, which reads c, which reads b, which reads a; break it"
    with pytest.raises(InvalidInput, match=cycle):
        chain(gemm("a", "c"), gemm("b", "a"), gemm("c", "b"))
    with pytest.raises(InvalidInput, match="ops: a cycle: a, which reads b, which reads a"):
        chain(gemm("a", norm="b"), gemm("b", residual=True, residual_source="a"))


def test_a_chain_has_eight_ops_at_most() -> None:
    chain(*(gemm(f"op{number}") for number in range(8)))
    with pytest.raises(InvalidInput, match="ops: 9 ops, but a kernel holds at most 8; use at most 8"):
        chain(*(gemm(f"op{number}") for number in range(9)))


def test_a_norm_over_a_width_that_no_op_writes_whole_is_refused() -> None:
    narrow = GemmOp(name="b", m=16, n=16, k=32, source="a")
    problem = r"c.norm: norms b as \[16, 32\], but it is \[16, 16\]: that is a norm over a width that no op"
    with pytest.raises(InvalidInput, match=problem):
        chain(gemm("a"), narrow, gemm("c", "a", norm="b"))
    chain(gemm("a"), narrow, gemm("c", "a", norm="a"))


def test_a_residual_has_the_shape_of_the_output() -> None:
    narrow = GemmOp(name="b", m=16, n=16, k=32, source="a", residual=True, residual_source="a")
    with pytest.raises(InvalidInput, match=r"b.residual_source: adds a as \[16, 16\], but it is \[16, 32\]"):
        chain(gemm("a"), narrow)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"residual_source": "a"}, "b.residual_source: names a, but no residual is added"),
        ({"norm": "a", "row_scale": True}, "b.norm: the norm of a and a row scale would both scale the rows"),
        ({"eps": 1e-6}, "b.eps: belongs to a norm, but there is none"),
        ({"norm": "a", "eps": -1e-6}, "b.eps: must be at least 0 and below 1, got -1e-06"),
        ({"norm": "a", "eps": float("nan")}, "b.eps: must be at least 0 and below 1, got nan"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        gemm("b", "a", **options)


def test_the_squares_of_a_tensor_are_no_tensor_of_another_name() -> None:
    with pytest.raises(InvalidInput, match=r"a\.squares is already an operand of a"):
        chain(gemm("a"), gemm("b", "a", norm="a"), gemm("a.squares"))


def block(m: int = 16) -> Workload:
    """A small version of the ops between two attentions, with a residual stream of 32 columns."""
    return chain(
        GemmOp(name="o", m=m, n=32, k=64, source="attention", residual=True, residual_source="x"),
        GemmOp(name="up", m=m, n=96, k=32, source="o", gated=True, activation=Activation.SILU, norm="o", eps=1e-6),
        GemmOp(name="down", m=m, n=32, k=96, source="up", residual=True, residual_source="o", is_output=True),
        GemmOp(name="qkv", m=m, n=48, k=32, source="down", norm="down", bias=True),
    )


def test_residuals_and_norms_of_earlier_ops_are_known() -> None:
    work = block()
    assert [work.residual_producer_of(op) for op in range(4)] == [None, None, 0, None]
    assert [work.norm_producer_of(op) for op in range(4)] == [None, 0, None, 2]
    assert [work.writes_squares(op) for op in range(4)] == [True, False, True, False]
    assert [work.leaves(op) for op in work.tile_ops] == [False, False, True, True]
    assert Workload.from_json(work.to_json()) == work
    assert work.describe() == "chain fp16 M=16 64 -> 32 -> 96 -> 32 -> 48 silu bias gated residual norm"


def test_only_what_a_chain_takes_in_and_hands_out_is_compulsory() -> None:
    """The residual stream and its squares stay on the chip, where they are computed."""
    weights = 32 * 64 + 2 * 96 * 32 + 32 * 96 + 48 * 32
    reads = weights + 16 * 64 + 16 * 32 + 48
    assert block().compulsory_read_bytes == 2 * reads
    assert block().compulsory_bytes == 2 * (reads + 16 * 32 + 16 * 48)
    head = chain(gemm("a", norm="x"))
    assert head.compulsory_read_bytes == chain(gemm("a")).compulsory_read_bytes + 16 * 4


def test_what_a_chain_alone_says_is_left_out_of_other_ops() -> None:
    plain = gemm("a")
    assert set(chain(plain).to_json()["ops"][0]) == {"name", "m", "n", "k", "source", "activation", "bias"}
    assert {"norm", "eps"} < set(chain(gemm("a", norm="x")).to_json()["ops"][0])


def test_an_op_that_reads_itself_is_refused() -> None:
    with pytest.raises(InvalidInput, match="b reads b, its own output"):
        chain(gemm("a"), gemm("b", "b"))


@pytest.mark.parametrize("operand", ["weight", "w", "bias", "residual", "row_scale"])
def test_a_tensor_has_one_name_and_a_name_one_tensor(operand: str) -> None:
    """An op named `b.residual` would write an input of op `b`, and nothing would wait for it."""
    reader = gemm("b", "a", bias=True, residual=True, row_scale=True)
    with pytest.raises(InvalidInput, match=f"b.{operand} is already an operand of b"):
        chain(gemm("a"), reader, gemm(f"b.{operand}"))
    with pytest.raises(InvalidInput, match=f"b.{operand} is already an operand of b"):
        chain(gemm("a"), reader, gemm("c", f"b.{operand}"))
    chain(gemm("a"), reader, gemm(f"d.{operand}"))


def test_an_input_has_one_shape() -> None:
    wide = GemmOp(name="b", m=16, n=32, k=64, source="x")
    with pytest.raises(InvalidInput, match=r"b.k: reads x as \[16, 64\], but a reads it as \[16, 32\]"):
        chain(gemm("a"), wide)
    chain(gemm("a"), gemm("b"))


def test_the_last_tile_of_the_largest_matrix_still_has_32_bit_indices() -> None:
    """The device counts a tile's rows and columns to its end, with strides of up to 1,024 threads."""
    assert MAX_ELEMENTS + 2 * 1024 + 512 <= 2**31 - 1
    GemmOp(name="a", m=MAX_ELEMENTS, n=1, k=1)
    with pytest.raises(InvalidInput, match="overflow a 32-bit index"):
        GemmOp(name="a", m=2**31 - 1, n=1, k=1)
