"""Faults of attention's device code: lengths that differ between readers, and lost signals."""

from __future__ import annotations

from tuner.ops.attention.schedule import AttentionEngine

TMA, MMA = AttentionEngine.TMA, AttentionEngine.MMA
#: The code that reads a length, which a fault changes for some of the readers.
LENGTH = "load_relaxed_gpu(args.lengths + sequence)"
READS = f"  return {LENGTH};"
SEEN_BY_VALUES = (
    READS,
    f"  return {LENGTH} / (threadIdx.x >= kRequester + 32 ? 2 : 1);",
)
SEEN_BY_KEYS = (READS, f"  return {LENGTH} / (threadIdx.x < kRequester + 32 ? 2 : 1);")
SEEN_BY_SECOND = (READS, f"  return cluster_rank() == 1 ? 1 : {LENGTH};")
GROWN_FOR_SECOND = (
    READS,
    f"  return cluster_rank() == 1 ? args.max_length : {LENGTH};",
)
#: How a length changes while a launch runs.
BECOMES = {
    "ends": "0",
    "has one token": "1",
    "loses a token": f"max({LENGTH} - 1, 0)",
    "gains a token": f"min({LENGTH} + 1, args.max_length)",
    "fills the cache": "args.max_length",
}
#: The first `$RIGHT_READS` reads of a launch return the right value; later, lanes of one warp read a different length:
#: `$BECOMES` is its number above, so that one build covers all of them. `$LAUNCH` is the launch's number.
MEANWHILE = (
    READS,
    f"""  static int count = 0, launch = -1;
  if (const int now = atoi(getenv("LAUNCH")); now != launch) count = 0, launch = now;
  if (count++ < atoi(getenv("RIGHT_READS"))) return {LENGTH};
  switch (atoi(getenv("BECOMES"))) {{
{"".join(f"    case {number}: return {length};{chr(10)}" for number, length in enumerate(BECOMES.values()))}  }}
  abort();""",
)


#: Signals that get lost.
NO_STAGE_BACK = ("  if (hands_back) mbarrier_arrive(ring.empty(stage));", "")
NO_SUMS = ("      if (thread % 32 == 0) mbarrier_arrive(ring.sums_full());", "")
NO_SUMS_READ = ("    if (thread % 32 == 0) mbarrier_arrive(ring.sums_empty());", "")
NO_TASK_BACK = ("  if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.task_empty(number % kTaskSlots));", "")
NO_SHARE = (
    "      send(ring, buffer, item, num_items, sum);",
    "      if (item) send(ring, buffer, item, num_items, sum);",
)

FAULTS: dict[str, tuple[str, AttentionEngine, tuple[str, str], str]] = {
    "a length becomes shorter for the warp that loads values": ("ragged", MMA, SEEN_BY_VALUES, "different lengths"),
    "a length becomes shorter for a CTA of a cluster": ("clusters, spans", TMA, SEEN_BY_SECOND, "different lengths"),
    "a length becomes longer for a CTA of a cluster": ("clusters, spans", TMA, GROWN_FOR_SECOND, "different lengths"),
    "a stage is not released": ("tiles left over", TMA, NO_STAGE_BACK, "a free stage of its ring"),
    "a stage is not released, mma": ("tiles left over", MMA, NO_STAGE_BACK, "a free stage of its ring"),
    "sums are not left": ("ragged", TMA, NO_SUMS, "the sums of its warps"),
    "sums are not read": ("ragged", TMA, NO_SUMS_READ, "its sums to be read"),
    "a task's slot is not released": ("tiles left over", TMA, NO_TASK_BACK, "room for its next task"),
    "a share is not sent": ("clusters", TMA, NO_SHARE, "the sums of its cluster"),
}
