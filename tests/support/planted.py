"""Deliberate faults: a real candidate whose kernel, or whose message, does one forbidden thing.

They pass through `GpuSupervisor.measure` like any candidate; the tested code has no hooks for them.
"""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, cast

from tests.support.forged import forged, with_others
from tuner.core.trial.outcome import FailureKind
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import PreparedKernel
from tuner.workers.source.launchable import Launchable

#: The counter never reaches this value, so a loop on it ends only with its process.
_ENDLESS = "while (*const_cast<volatile u32*>(&args.workspace->abort.raised) != 77u) {}"
_HUGE = "__device__ unsigned char planted_huge[1ull << 38];\n"


@dataclass(frozen=True, kw_only=True)
class KernelFault:
    """A statement that one thread of the launch executes first."""

    name: str
    statement: str
    #: How its trial must end.
    kind: FailureKind
    #: A pattern that its reason must match.
    reason: str
    #: Text that is inserted before the source.
    preamble: str = ""


KERNEL_FAULTS = (
    KernelFault(
        name="illegal address",
        statement="*reinterpret_cast<volatile int*>(16) = 1;",
        kind=FailureKind.ILLEGAL_ADDRESS,
        reason=r"accessed memory that does not exist \((CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress)\)",
    ),
    KernelFault(
        name="misaligned address",
        statement="*reinterpret_cast<volatile u64*>(args.ops[0].c + 1) = 1;",
        kind=FailureKind.MISALIGNED_ADDRESS,
        reason=r"not aligned \((CUDA_ERROR_MISALIGNED_ADDRESS|cudaErrorMisalignedAddress)\)",
    ),
    KernelFault(
        name="assertion",
        statement="assert(args.plan.num_tasks < 0);",
        kind=FailureKind.DEVICE_ASSERT,
        reason=r"assertion in the kernel failed \((CUDA_ERROR_ASSERT|cudaErrorAssert)\)",
    ),
    KernelFault(
        name="trap",
        statement='asm volatile("trap;");',
        kind=FailureKind.CRASH,
        reason=r"\((CUDA_ERROR_LAUNCH_FAILED|cudaErrorLaunchFailure)\)",
    ),
    KernelFault(
        name="out of memory",
        statement="planted_huge[args.plan.num_tasks] = 1;",
        kind=FailureKind.OUT_OF_MEMORY,
        reason=r"memory is full \(CUDA_ERROR_OUT_OF_MEMORY\)",
        preamble=_HUGE,
    ),
    KernelFault(
        name="write into the weights",
        statement="const_cast<u16*>(args.ops[0].w)[0] = 0;",
        kind=FailureKind.OVERWRITE,
        reason=r"the weights of up in slot 0",
    ),
    KernelFault(
        name="write into the input",
        statement="const_cast<u16*>(args.ops[0].a)[0] = 0;",
        kind=FailureKind.OVERWRITE,
        reason=r"the input x of (slot|check) \d",
    ),
    KernelFault(
        name="write behind the output",
        statement="args.ops[1].c[args.ops[1].m * args.ops[1].n] = 7;",
        kind=FailureKind.OVERWRITE,
        reason=r"memory after the output down of slot 0",
    ),
    KernelFault(
        name="write before the output",
        statement="args.ops[1].c[-1] = 7;",
        kind=FailureKind.OVERWRITE,
        reason=r"memory before the output down of slot 0",
    ),
    KernelFault(
        name="write behind the workspace",
        statement=(
            "reinterpret_cast<u32*>(args.workspace)"
            "[fixup_aligned(kSignalsOffset + 4LL * args.plan.num_signals) / 4 + 1] = 7;"
        ),
        kind=FailureKind.OVERWRITE,
        reason=r"memory around the workspace",
    ),
    KernelFault(
        name="write into the plan",
        statement="const_cast<int*>(args.words)[args.plan.task_offset + 6] = 7;",
        kind=FailureKind.OVERWRITE,
        reason=r"outside its outputs: the plan",
    ),
)
#: Ends only with its process, so the supervisor's deadline decides.
HANG = KernelFault(name="hang", statement=_ENDLESS, kind=FailureKind.HANG, reason=r"no answer within .* was killed")


def planted_source(fault: KernelFault, source: str) -> str:
    """`source` with the fault as its kernel's first statement."""
    entry = re.compile(r"(__global__ [^;{]*\btuner_chain\([^)]*\) \{\n)")
    assert len(entry.findall(source)) == 1, "the kernel's entry has moved"
    statement = f"  if (blockIdx.x == 0 && threadIdx.x == 0) {{ {fault.statement} }}\n"
    return fault.preamble + entry.sub(lambda match: match[1] + statement, source)


def with_fault(fault: KernelFault, prepared: PreparedKernel, builder: Builder, arch: str) -> PreparedKernel:
    """The same candidate with the fault in its kernel."""
    cubin = builder.build(planted_source(fault, prepared.source), arch).cubin
    return replace(prepared, work=with_others(prepared.work, cubin=cubin))


def with_raised_threshold(prepared: PreparedKernel, spin_limit_cycles: int = 10**9) -> PreparedKernel:
    """The same candidate with a wait that requires one post too many: its bounded wait expires."""
    (plan,) = prepared.plans
    words = plan.words.copy()
    wait_offset = int(words[8])
    words[wait_offset + 2] += 1
    bad = forged(plan, words)
    work = with_others(prepared.work, plans=(bad,), spin_limit_cycles=spin_limit_cycles)
    return replace(prepared, work=work)


class _Deed:
    """An action in the process that unpickles it."""

    def __init__(self, function: Callable[..., object], *arguments: Any) -> None:
        self._done = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Any, ...]]:
        return self._done


def answer_garbage() -> bytes:
    """Writes garbage into every pipe of this process that leads to its supervisor."""
    for thing in gc.get_objects():
        if isinstance(thing, Connection) and not thing.closed and thing.writable:
            thing.send_bytes(b"garbage")
    return b""


def kill_itself() -> None:
    """Sends itself SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class ProcessFault:
    """What the child does instead of reading its request."""

    name: str
    function: Callable[..., object]
    arguments: tuple[Any, ...] = ()
    #: A pattern that the reason of the trial, a crash, must match.
    reason: str


PROCESS_FAULTS = (
    ProcessFault(name="silent exit", function=os._exit, arguments=(3,), reason=r"died \(exit code 3\)"),
    ProcessFault(name="killed from outside", function=kill_itself, reason=r"died \(signal 9\)"),
    ProcessFault(name="garbage", function=answer_garbage, reason=r"answered garbage"),
)


def with_deed(fault: ProcessFault, prepared: PreparedKernel) -> PreparedKernel:
    """The same candidate in a message that performs the action when the child reads it."""
    deed = cast(Launchable, _Deed(fault.function, *fault.arguments))
    return replace(prepared, work=replace(prepared.work, launchables=(deed,)))
