"""What a launch needs, guarantees and forbids, besides its parameter: the manifest's words for programs without
tuner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.ops.op import LaunchOp
from tuner.core.problem.workload import Workload
from tuner.core.proof.order_of_sums import OrderOfSums, order_of_sums
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.levels import LaunchOpSchedule
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule

from ..source.launch_args import REFUSED_OFFSET_BYTES, WORKSPACE_ALIGNMENT_BYTES, needs_co_residency
from ..source.variants import reads_weights_before_wait

#: Alignment of every tensor: that of the copy engine and of the widest load. Source: CUDA driver API,
#: cuTensorMapEncodeTiled, `globalAddress`.
TENSOR_ALIGNMENT_BYTES = 16
#: Alignment of the words of a plan, which are read in vectors of 16 bytes.
PLAN_ALIGNMENT_BYTES = 16


def launch_facts(plan: VerifiedPlan, kind: PlanKind) -> dict[str, Any]:
    """What one launch needs from the card and from its neighbours in the stream."""
    needs_all_ctas = needs_co_residency(plan)
    return {
        "needs_all_ctas": needs_all_ctas,
        "reads_weights_before_wait": reads_weights_before_wait(plan, programmatic=kind.is_programmatic),
        # The same cubin without the attribute: it begins only after everything before it in the stream has ended.
        "plain": {"cooperative": needs_all_ctas, "programmatic_dependent_launch": False},
        "plan_alignment_bytes": PLAN_ALIGNMENT_BYTES,
    }


def workspace_facts(layout: dict[str, int]) -> dict[str, Any]:
    """A launch's workspace: its alignment and zeroing, and where a guarded build keeps its own data."""
    return {
        "alignment_bytes": WORKSPACE_ALIGNMENT_BYTES,
        "zero_bytes": layout["slots"],
        "guard": {
            "host_record": {"offset": 192, "meaning": "device address of a record in mapped host memory, or null"},
            "ctas": {"offset": 200, "meaning": "uint64[2]: CTAs that started times 65536, plus those that are running"},
            "variants": ["guarded", "safe"],
        },
    }


def refused_facts(workload: Workload, ops: Sequence[int]) -> dict[str, Any]:
    """Where the workspace of a launch of those ops reports invalid lengths or pages of new tokens."""
    if workload.cache_op not in ops:
        return {}
    refused = {"offset": REFUSED_OFFSET_BYTES, "fields": ["kind", "sequence", "value", "end"], "meaning": _REFUSED}
    return {"refused": refused}


def legal_rows(workload: Workload, asked: Workload) -> dict[str, int]:
    """The values of m for which the kernel may be launched: rows beyond m are read as zeros and never stored, and
    the plan's tasks for tiles beyond m compute nothing. The parameter's m and the rows of the tensor maps are then
    this m. A launch op's rows are fixed; an unused slot of an attention has length 0. Rows of a tile op are fixed
    too, if its kind does not support fewer. The maximum is that of the `asked` ops, which `workload` may compute as
    one."""
    rows = {op.m for op in asked.ops}
    most, serves_fewer = max(rows), all(op.SERVES_FEWER_ROWS for op in workload.tile_ops)
    return {"min": 1 if len(rows) == 1 and serves_fewer and not workload.launch_ops else most, "max": most}


def numbers(
    workload: Workload, plans: Sequence[VerifiedPlan], schedule: Schedule, fallback: Sequence[VerifiedPlan] = ()
) -> dict[str, Any]:
    """How exact and repeatable the results are, and in which form. If the `fallback` adds up in a different order than
    the plans, a row's bits depend on the card, so none of these orders is guaranteed."""
    order = order_of_sums(plans) if plans else OrderOfSums(text="", is_of_rows=True)
    pairs = zip(workload.launch_ops, schedule.launch_ops, strict=True)
    texts = [text for op, one in pairs if (text := _order_of_sums(op, one))]
    is_one_order = not fallback or order_of_sums(fallback) == order
    return {
        "max_rel_error": workload.dtype.row.max_rel_error,
        "max_rel_error_meaning": "of ||out - reference|| / ||reference|| against float64",
        "accumulation": "fp32",
        "deterministic": True,
        "deterministic_meaning": (
            "the same build and plan produce the same bits in every launch, whatever else runs at the same time"
        ),
        "order_of_sums": "; ".join([*texts, *([order.text] if order.text else [])]),
        "order_of_sums_meaning": (
            "kernels with the same order compute the same bits for a row; columns of k, sum by sum"
        ),
        "rows_independent": order.is_of_rows and is_one_order,
        "rows_independent_meaning": "a row's bits depend neither on the number of rows nor on its position among them",
        "gelu": "tanh",
        "gate": "above_up",
        "gate_meaning": "a gated op's weight and bias hold the gate's rows first, then the up projection's",
        **{f"{part.field}_meaning": part.meaning for op in workload.tile_ops for part in op.parts if part.meaning},
    }


def _order_of_sums(op: LaunchOp, schedule: LaunchOpSchedule) -> str:
    """The order in the words of the op's kind; empty if the kind does not define it."""
    words = part_of(op.KIND, "words")
    return str(words.order_of_sums(op, schedule)) if words and hasattr(words, "order_of_sums") else ""


_REFUSED = (
    "of the first length or page that a launch could not use: kind is 1 for a length, 2 for a page; `end` is the "
    "first value that is too large. The token is not written, and the launch continues. Kept until it is zeroed"
)


def aliasing(workload: Workload) -> list[dict[str, str]]:
    """Pairs of tensors that may share one address; no other two may, if one of them is written."""
    inputs = [read.tensor for op in workload.tile_ops for read in (op.reads[:1] if op.IS_PRODUCT else op.reads)]
    inputs += [read.tensor for op in workload.launch_ops for read in op.reads]
    parts = ((op, part) for op in workload.tile_ops for part in op.parts if part.is_read_first)
    added = {op.name: (part, part.pointer(op)) for op, part in parts}
    return [
        {
            "tensors": f"{tensor}, {name}",
            "why": f"the thread that writes an element of the output has read the same element of {part.field} before",
        }
        for name, (part, tensor) in added.items()
        if [*inputs, *(one for _, one in added.values())].count(tensor) == 1  # no other op reads it
    ]


INTERMEDIATES = (
    "The caller's memory. Launches that follow each other in one stream may share one; two that run at the same time "
    "may not."
)
