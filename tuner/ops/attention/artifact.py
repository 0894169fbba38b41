"""An attention's recipe in a manifest: kernel, parameter, plan, workspace, and what a caller must pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tuner.core.plan.op_launches import ALIGNMENT_BYTES, OpLaunches
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.trial.limits import Limits
from tuner.ops.attention.append import APPEND_KERNEL, append_parameter_bytes, render_append
from tuner.ops.attention.append.recipe import append_recipe
from tuner.ops.attention.launches import first_task_bytes, launches_of, mapped, workspace_of
from tuner.ops.attention.op import AttentionOp
from tuner.ops.attention.plans.tasks import AttentionPlan
from tuner.ops.attention.schedule import MOST_PORTABLE_CLUSTER, AttentionSchedule
from tuner.ops.attention.source import ATTENTION_KERNEL, form_numbers
from tuner.workers.builder.nvrtc import Built
from tuner.workers.builder.own_artifact import Compiled, maps_json, parameter_json
from tuner.workers.source.own_launchable import OwnLaunchable

_LENGTHS = (
    "int32 for each sequence, new tokens included, read when a launch runs: 0 to max_length. A sequence of length 0 "
    "gets zeros. Memory past a length in the cache may hold anything. A longer one is read as max_length, and "
    "reported in the words `refused`. A length must not change while the launch runs: CTAs read it one by one, and "
    "may abort"
)
_ABORT = (
    "raised is 1 if a wait has lasted too long. Rows that the launch could not finish are NaN. Each later launch "
    "returns NaN, until the first zero_bytes of the workspace are zeroed while no launch is running"
)
_CACHE = (
    "{shape}. The new tokens' keys and values must be in it before the launch, at the end of each length. It is read "
    "after the programmatic wait, and never written"
)
_WRITTEN_CACHE = (
    "{shape}. The launch of {writer} writes the new tokens' keys and values to it, at the end of each length. It is "
    "read after the programmatic wait. The next run's launch of {writer} waits until this launch has ended, then "
    "writes to it"
)
_CONTIGUOUS = "[sequences, kv_heads, max_length, head_dim], contiguous"
_HEADS_FIRST = "[num_pages, kv_heads, page_tokens, head_dim], whose pages a table assigns to sequences"
_TOKENS_FIRST = "[num_pages, page_tokens, kv_heads, head_dim], whose pages a table assigns to sequences"
_PAGES = (
    "int32 page numbers for each sequence, read when a launch runs: 0 to num_pages - 1. Page numbers past the end of "
    "a length are not read. A page that does not exist is read as zeros, and reported in the words `refused`"
)
_NUM_PAGES = "a cache may have a different number of pages: pass it as the parameter's num_pages"
_NUM_PAGES_OF_MAPS = f"{_NUM_PAGES}, and that number times rows_per_page as dims[1] of both tensor maps"


@dataclass(frozen=True, kw_only=True)
class CacheKernel:
    """What an artifact contains for one attention."""

    section: ClassVar[str] = "attentions"

    workload: Workload
    gpu: Gpu
    index: int
    schedule: AttentionSchedule
    plan: AttentionPlan
    #: Hex digest of the plan's proof.
    proof: str
    source: str
    #: None if nothing was compiled.
    launchable: OwnLaunchable | None = None
    #: The append kernel, which may be launched before the attention; None if nothing was compiled.
    append: Built | None = None
    #: Maximum duration of one wait.
    spin_limit_cycles: int = Limits.spin_limit_cycles

    @property
    def op(self) -> AttentionOp:
        """The attention that the kernel computes."""
        op: AttentionOp = self.workload.launch_ops[self.index]
        return op

    @property
    def takes_append(self) -> bool:
        """Whether there is an append kernel: only if no op of the workload computes the queries."""
        return all(self.op.source != other.name for other in self.workload.ops)

    @property
    def launches(self) -> OpLaunches:
        """Its launch, with all arguments."""
        return launches_of(self.op, self.schedule, self.plan, self.workload)

    @property
    def files(self) -> dict[str, bytes]:
        """The artifact's files, by name."""
        name = f"attention{self.index}"
        files = {
            f"{name}.cu": self.source.encode(),
            f"{name}_tasks.bin": self.plan.tasks.astype("<i4").tobytes(),
            f"{name}_queues.bin": self.plan.queues.astype("<i4").tobytes(),
        }
        if self.takes_append:
            files[f"{name}_append.cu"] = render_append(self.op.shape, self.op.form.paged).encode()
            files |= {f"{name}_append.cubin": self.append.cubin} if self.append else {}
        return files | ({f"{name}.cubin": self.launchable.cubin} if self.launchable else {})

    def recipes(self, compiled: Compiled, *, programmatic: bool) -> list[dict[str, Any]]:
        """The recipe of its only launch."""
        name, build = f"attention{self.index}", self.launchable.ties.build if self.launchable else None
        kernel = compiled(name, ATTENTION_KERNEL, build, self.launches.launches[0].parameter_bytes)
        return [_recipe(self, kernel, self._append(compiled, programmatic), programmatic=programmatic)]

    def _append(self, compiled: Compiled, programmatic: bool) -> dict[str, Any] | None:
        if not self.takes_append:
            return None
        name, build = f"attention{self.index}_append", self.append.key if self.append else None
        kernel = compiled(name, APPEND_KERNEL, build, append_parameter_bytes())
        return append_recipe(self.op, kernel, programmatic=programmatic)

    def tensors(self) -> list[dict[str, Any]]:
        """Queries, caches, lengths and results; row-major, contiguous."""
        op, dtype, cache = self.op, str(self.workload.dtype), list(self.op.cache_shape)
        is_read = self.workload.reader_of(op) is not None
        queries = [(op.source, "input", [op.m, op.n], dtype)] if self.takes_append else []
        found = (
            *queries,
            (f"{op.name}.keys", "cache", cache, dtype),
            (f"{op.name}.values", "cache", cache, dtype),
            (f"{op.name}.lengths", "lengths", [op.shape.sequences], "int32"),
            *_page_table(op),
            (op.name, "intermediate" if is_read else "output", [op.m, op.n], dtype),
        )
        return [
            {"name": name, "role": role, "shape": sizes, "dtype": of, "alignment_bytes": 16}
            for name, role, sizes, of in found
        ]


def kernels_of(plan: AttentionPlan, built: Callable[[str], Built | None], **facts: Any) -> CacheKernel:
    """Kernels of one attention's plan; `built` compiles a source, if anything is compiled."""
    one = CacheKernel(plan=plan, **facts)
    if not one.takes_append:
        return one
    return replace(one, append=built(render_append(one.op.shape, one.op.form.paged)))


def _page_table(op: AttentionOp) -> list[tuple[str, str, list[int], str]]:
    if op.form.paged is None:
        return []
    return [(op.operands[3], "pages", [op.shape.sequences, op.form.paged.pages_of(op.shape)], "int32")]


def _recipe(
    one: CacheKernel, kernel: dict[str, Any], append: dict[str, Any] | None, *, programmatic: bool
) -> dict[str, Any]:
    """How the attention is launched; `kernel` describes the compiled kernel, `append` the optional kernel before it.
    The attention is launched before the op that reads its output.
    """
    op, plan, tiling = one.op, one.plan, one.schedule.tiling_of(one.op.shape)
    name = f"attention{one.index}"
    reader = one.workload.reader_of(op)
    return {
        "op": op.name,
        "before": reader.name if reader else None,
        "kernel": kernel,
        "proof": one.proof,
        "tasks": f"{name}_tasks.bin",
        "queues": f"{name}_queues.bin",
        "grid": [plan.num_ctas, 1, 1],
        "block": [tiling.num_threads, 1, 1],
        "cluster": [tiling.cluster, 1, 1],
        "allows_non_portable_cluster": tiling.cluster > MOST_PORTABLE_CLUSTER,
        "cooperative": False,
        "needs_all_ctas": False,
        "programmatic_dependent_launch": programmatic,
        "dynamic_smem_bytes": tiling.smem_bytes,
        "parameter": _parameter(one),
        "tensor_maps": maps_json(one.launches.launches[0], one.workload),
        "first_tasks": first_task_bytes(plan).hex(),
        "workspace": _workspace(one),
        "lengths": {"tensor": f"{op.name}.lengths", "max": op.shape.max_length, "meaning": _LENGTHS},
        **_pages(one),
        "cache": _cache_meaning(one.workload, op),
        **({} if append is None else {"append": append}),
        "stream": 0,
    }


def _cache_meaning(workload: Workload, op: AttentionOp) -> str:
    if workload.turned_for == op:
        return _WRITTEN_CACHE.format(shape=_cache_words(op), writer=op.source)
    return _CACHE.format(shape=_cache_words(op))


def _cache_words(op: AttentionOp) -> str:
    if op.form.paged is None:
        return _CONTIGUOUS
    return _HEADS_FIRST if op.form.paged.heads_first else _TOKENS_FIRST


def _pages(one: CacheKernel) -> dict[str, Any]:
    """The table of a paged cache, and the bounds of its entries."""
    op, paged = one.op, one.op.form.paged
    if paged is None:
        return {}
    table = {
        "tensor": op.operands[3],
        "page_tokens": paged.page_tokens,
        "num_pages": paged.num_pages,
        "rows_per_page": form_numbers(op.shape, op.form)["rows_per_page"],
        "meaning": _PAGES,
        "num_pages_meaning": _NUM_PAGES_OF_MAPS if mapped(one.schedule) else _NUM_PAGES,
    }
    return {"pages": table}


def _parameter(one: CacheKernel) -> dict[str, Any]:
    """The one struct that the kernel takes by value, field by field. The fields' names refer to files and to parts
    of the workspace."""
    (launch,) = one.launches.launches
    found = parameter_json(launch, one.spin_limit_cycles, lambda field: field.name)
    fields = []
    for field in found["fields"]:
        left_out = {"room", "file"} | ({"value"} if field["name"] == "first_tasks" else set())
        left_out |= {"tensor"} if field["name"] == "trace" else set()
        fields.append({name: value for name, value in field.items() if name not in left_out})
    return {**found, "fields": fields}


def _workspace(one: CacheKernel) -> dict[str, Any]:
    """The workspace: counters first, then the record of refused input, then the partial sums of spans."""
    at = workspace_of(one.plan, one.schedule)
    return {
        "arrivals": at["arrivals"],
        "refused": at["refused"],
        "partials": at["partials"],
        "bytes": at["bytes"],
        "zero_bytes": at["partials"],
        "alignment_bytes": ALIGNMENT_BYTES,
        "per": "stream: launches that may run at once need one each",
        "zero": "once, when it is allocated, and again after an abort; the bytes from partials on need not be",
        "counters": "they only grow, no launch resets them",
        "refused_fields": ["kind", "sequence", "value", "end"],
        "abort_record": {
            "offset": at["abort"],
            "fields": ["raised", "task", "waited", "warp", "parity", "cta"],
            "meaning": _ABORT,
        },
    }
