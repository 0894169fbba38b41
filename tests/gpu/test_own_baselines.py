"""Programs of a user's own on a card: their numbers first, then rounds with the finalists; what one does wrong is said
by its name, and the card stays usable."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.on_card import fused, problem, schedule
from tuner.core.problem.workload import Activation
from tuner.core.schedule.candidate import LIBRARY
from tuner.core.trial.limits import Limits
from tuner.core.trial.reports.baselines import BaselineTime, CudaSource, KernelLaunch
from tuner.ops.gemm.pairs import ffn_pair
from tuner.python.baselines import baselines_of
from tuner.workers.host.cards import Card
from tuner.workers.host.supervisor import GpuSupervisor

M, D_IN, D_HIDDEN, D_OUT = 16, 512, 1024, 256
PROBLEM = problem(ffn_pair(m=M, d_in=D_IN, d_hidden=D_HIDDEN, d_out=D_OUT, activation=Activation.RELU))
FINALISTS = (LIBRARY, fused(schedule(((16, 64, 64), (16, 64, 64)))))
ROUNDS = 8
HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "cloudpickle"))

#: A thread an element; `kFault` is what it does wrong.
TEXT = r"""
#include <cuda_fp16.h>
extern "C" __global__ void layer(const __half *x, const __half *w, __half *y, int n, int k, int relu, float scale) {
  int index = blockIdx.x * blockDim.x + threadIdx.x, row = index / n, column = index % n;
  if (kFault == 1) while (true) __nanosleep(1000);
  if (kFault == 2) *(volatile int *)nullptr = 1;
  if (kFault == 3) const_cast<__half *>(x)[0] = __float2half(3.0f);
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += __half2float(x[row * k + i]) * __half2float(w[column * k + i]);
  y[index] = __float2half((relu && sum < 0 ? 0 : sum) * scale);
}
"""


def launch(arguments: tuple[str, str, str], n: int, k: int, relu: int, scale: float = 1.0) -> KernelLaunch:
    grid = (M * n // 128, 1, 1)
    return KernelLaunch(kernel="layer", grid=grid, block=(128, 1, 1), arguments=(*arguments, n, k, relu, scale))


LAUNCHES = (
    launch(("x", "up.weight", "up"), D_HIDDEN, D_IN, 1),
    launch(("up", "down.weight", "down"), D_OUT, D_HIDDEN, 0),
)
RIGHT = CudaSource(text=TEXT, launches=LAUNCHES, options=("-DkFault=0",))
PROGRAMS: dict[str, CudaSource] = {
    "right": RIGHT,
    "wrong": replace(RIGHT, launches=(LAUNCHES[0], launch(("up", "down.weight", "down"), D_OUT, D_HIDDEN, 0, 1.25))),
    "half of it": replace(RIGHT, launches=LAUNCHES[:1]),
    "hangs": replace(RIGHT, options=("-DkFault=1",)),
    "faults": replace(RIGHT, options=("-DkFault=2",)),
    "overwrites": replace(RIGHT, options=("-DkFault=3",)),
    "no CUDA": replace(RIGHT, options=("-DkFault=nothing",)),
    "right again": RIGHT,
}


@pytest.fixture(scope="module")
def supervisor(card: Card, build_cache: Path) -> Iterator[GpuSupervisor]:
    limits = Limits(finals_deadline_s=20.0, torch_compile_deadline_s=10.0)
    supervisor = GpuSupervisor(card, build_cache, limits)
    yield supervisor
    supervisor.close()


def beside(supervisor: GpuSupervisor, programs: dict[str, Any]) -> dict[str, BaselineTime]:
    baselines = baselines_of(PROBLEM.workload, programs)
    found = supervisor.beside(PROBLEM, FINALISTS, baselines, num_rounds=ROUNDS, winner=1)
    assert [one.name for one in found] == list(programs)
    return {one.name: one for one in found}


def test_kernels_are_checked_and_timed_and_each_fault_is_said_by_name(supervisor: GpuSupervisor) -> None:
    found = beside(supervisor, PROGRAMS)
    for name in ("right", "right again"):
        one = found[name]
        assert one.reason == ""
        assert one.time_us is not None
        assert one.speedup is not None
        assert 0 < one.speedup < 1, "a thread an element is no match for cuBLASLt"
        assert one.winner_speedup is not None
        assert one.winner_speedup > 1
        assert one.num_rounds > 0
    said = {
        "wrong": "down: relative error",
        "half of it": "down: relative error nan",
        "hangs": "no answer within 30 s",
        "faults": "touched memory that is not there",
        "overwrites": "wrote where it must not: the input x",
        "no CUDA": "it cannot be compiled",
    }
    for name, reason in said.items():
        assert reason in found[name].reason, found[name]
        assert found[name].time_us is None
    assert supervisor.child_pid is None, "what programs leave in a process goes with it"
    assert supervisor.finals(PROBLEM, FINALISTS, num_rounds=1).reasons == ("", "")


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch or cloudpickle is not installed")
def test_functions_of_tensors_are_checked_and_timed_and_each_fault_is_said_by_name(supervisor: GpuSupervisor) -> None:
    import torch

    def mine(x: Any, up_weight: Any, down_weight: Any) -> Any:
        return torch.relu(x @ up_weight.T) @ down_weight.T

    def raises(x: Any) -> Any:
        raise ZeroDivisionError("of mine")

    def synchronizes(x: Any, up_weight: Any, down_weight: Any) -> Any:
        return mine(x, up_weight, down_weight) * float(x.abs().max() > 0)

    def in_place(x: Any, up_weight: Any, down_weight: Any) -> Any:
        return mine(x.mul_(1.5), up_weight, down_weight)

    functions: dict[str, Callable[..., Any]] = {
        "mine": mine,
        "wrong": lambda x, up_weight, down_weight: (x @ up_weight.T) @ down_weight.T,
        "raises": raises,
        "another shape": lambda x, up_weight: x @ up_weight.T,
        "another type": lambda **tensors: mine(**tensors).float(),
        "no tensor": lambda x: 3,
        "synchronizes": synchronizes,
        "in place": in_place,
    }
    found = beside(supervisor, functions)
    assert found["mine"].reason == ""
    assert found["mine"].speedup is not None
    assert 0.2 < found["mine"].speedup < 2
    said = {
        "wrong": "down: relative error",
        "raises": "ZeroDivisionError: of mine",
        "another shape": f"it returns [{M}, {D_HIDDEN}] of torch.float16 as down: return [{M}, {D_OUT}]",
        "another type": "of torch.float32 as down",
        "no tensor": "it returns a int as down",
        "in place": "wrote where it must not",
    }
    for name, reason in said.items():
        assert reason in found[name].reason, found[name]
    assert found["synchronizes"].time_us is None
    assert found["synchronizes"].reason
    assert supervisor.finals(PROBLEM, FINALISTS, num_rounds=1).reasons == ("", "")
