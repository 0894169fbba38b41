"""Published ways to share decode attention among CTAs, by name, as schedules of this space.

Everything else is as in our kernel: the last CTA to arrive adds up the splits, whereas flash decoding launches a second
kernel. Spans have a fixed length, so even shares are only even at the longest contexts. LeanAttention balances them at
any lengths. In return, here the bits of a sequence's result do not depend on the other lengths.

Source: Dao et al., "Flash-Decoding for long-context inference", 2023, and its `num_splits_heuristic`; Sanovar et al.,
"Lean Attention: Hardware-Aware Scalable Attention Mechanism for the Decode-Phase of Transformers", 2024.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.plans.tasks import num_attention_clusters
from tuner.ops.attention.rules import PARTS_AT_ONCE, refuse
from tuner.ops.attention.schedule import AttentionSchedule

#: Constants of flash decoding: the share of the SMs from which on contexts are not split because slots fill it; the
#: maximum number of splits; and how close the smallest number of splits has to come to the best use of the last wave.
_FULL, _MOST_SPLITS, _NEAR = 0.8, 128, 0.85
Policy = Callable[[AttentionOp, Gpu, AttentionSchedule], AttentionSchedule]


def flash_decoding(op: AttentionOp, gpu: Gpu, kernel: AttentionSchedule) -> AttentionSchedule:
    """Fixed splits of each context, one CTA per split; as few as fill the SMs about as well as any other number."""
    slots, tiles, ctas = _slots(op, kernel), -(-op.shape.max_length // kernel.tile_tokens), _ctas(gpu)
    splits = 1
    if slots < _FULL * ctas:
        numbers = range(1, min(_MOST_SPLITS, ctas, tiles) + 1)
        # With as many tiles per split, more splits would leave some of them empty.
        whole = [number for number in numbers if number == 1 or -(-tiles // number) != -(-tiles // (number - 1))]
        used = {number: slots * number / ctas / math.ceil(slots * number / ctas) for number in whole}
        splits = next(number for number in whole if used[number] >= _NEAR * max(used.values()))
    return _shared(op, kernel, -(-tiles // splits), contiguous=False)


def even_shares(op: AttentionOp, gpu: Gpu, kernel: AttentionSchedule) -> AttentionSchedule:
    """LeanAttention: all tiles of all longest contexts in sequence, divided evenly among the CTAs. Contexts and
    shares are whole numbers of spans, and spans are as long as possible."""
    slots, tiles, ctas = _slots(op, kernel), -(-op.shape.max_length // kernel.tile_tokens), _ctas(gpu)
    share = max(1, slots * tiles // ctas)
    return _shared(op, kernel, math.gcd(tiles, share), contiguous=slots * (tiles // math.gcd(tiles, share)) > ctas)


#: The policies by name.
ATTENTION_POLICIES: Mapping[str, Policy] = {"flash_decoding": flash_decoding, "even_shares": even_shares}


def policy_schedules(
    workload: Workload, gpu: Gpu, op: AttentionOp, kernel: AttentionSchedule
) -> Iterator[tuple[str, AttentionSchedule]]:
    """The schedules of each policy for a schedule's kernel, if they are legal."""
    for name, policy in ATTENTION_POLICIES.items():
        schedule = policy(op, gpu, kernel)
        if refuse(workload, gpu, op, schedule) is None:
            yield name, schedule


def policies_of_attention(workload: Workload, gpu: Gpu, op: AttentionOp, schedule: AttentionSchedule) -> list[str]:
    """The policies that share tasks as this schedule does."""
    shared = _sharing(schedule)
    return [name for name, other in policy_schedules(workload, gpu, op, schedule) if _sharing(other) == shared]


def _sharing(schedule: AttentionSchedule) -> tuple[int, int, bool, bool]:
    return schedule.cluster, schedule.span_tokens, schedule.contiguous, schedule.by_length


def _shared(op: AttentionOp, kernel: AttentionSchedule, tiles: int, *, contiguous: bool) -> AttentionSchedule:
    """A schedule with spans of `tiles` tiles, one CTA per span."""
    span = tiles * kernel.tile_tokens
    one = replace(kernel, cluster=1, span_tokens=span, contiguous=contiguous, by_length=False)
    return replace(one, parts_at_once=PARTS_AT_ONCE[-2]) if one.num_spans(op.shape) == 1 else one


def _slots(op: AttentionOp, kernel: AttentionSchedule) -> int:
    blocks = -(-op.shape.columns // kernel.tiling_of(op.shape).columns)
    return op.shape.sequences * op.shape.kv_heads * blocks


def _ctas(gpu: Gpu) -> int:
    return num_attention_clusters(gpu, 1)
