"""User-supplied baseline programs on a GPU: results are checked first, then timed in rounds with the finalists; a
faulty program is reported by name, and the GPU stays usable."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.on_card import fused, problem, schedule
from tuner.core.problem.asked import workload_of
from tuner.core.problem.workload import Activation, Workload
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

#: One thread per element; `kFault` selects its fault.
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


CONVS = workload_of(
    {"kind": "conv-pair", "images": 2, "height": 14, "width": 14, "channels": 64}
    | {"first": {"filters": 64, "kernel": 3, "stride": 1}, "second": {"filters": 128, "kernel": 1, "stride": 1}}
)
ATTENTION = workload_of(
    {"kind": "attention", "sequences": 4, "max_length": 512, "heads": 8, "kv_heads": 2, "head_dim": 128}
)


@pytest.fixture(scope="module")
def supervisor(card: Card, build_cache: Path) -> Iterator[GpuSupervisor]:
    limits = Limits(finals_deadline_s=20.0, torch_compile_deadline_s=10.0)
    supervisor = GpuSupervisor(card, build_cache, limits)
    yield supervisor
    supervisor.close()


def beside(
    supervisor: GpuSupervisor, programs: dict[str, Any], workload: Workload = PROBLEM.workload
) -> dict[str, BaselineTime]:
    """Times the programs with two finalists or, for any workload but a pair of products, with the library only."""
    baselines = baselines_of(workload, programs)
    is_products = workload == PROBLEM.workload
    finalists = FINALISTS if is_products else (LIBRARY,)
    found = supervisor.beside(problem(workload), finalists, baselines, num_rounds=ROUNDS, winner=len(finalists) - 1)
    assert [one.name for one in found] == list(programs)
    return {one.name: one for one in found}


def test_kernels_are_checked_and_timed_and_each_fault_is_said_by_name(supervisor: GpuSupervisor) -> None:
    found = beside(supervisor, PROGRAMS)
    for name in ("right", "right again"):
        one = found[name]
        assert one.reason == ""
        assert one.time_us is not None
        assert one.speedup is not None
        assert 0 < one.speedup < 1, "one thread per element is much slower than cuBLASLt"
        assert one.winner_speedup is not None
        assert one.winner_speedup > 1
        assert one.num_rounds > 0
    said = {
        "wrong": "down: relative error",
        "half of it": "down: relative error nan",
        "hangs": "no answer within 30 s",
        "faults": "accessed memory that does not exist",
        "overwrites": "wrote outside its outputs: the input x",
        "no CUDA": "it cannot be compiled",
    }
    for name, reason in said.items():
        assert reason in found[name].reason, found[name]
        assert found[name].time_us is None
    assert supervisor.child_pid is None, "the state that programs leave in a process ends with it"
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
        "in place": "wrote outside its outputs",
    }
    for name, reason in said.items():
        assert reason in found[name].reason, found[name]
    assert found["synchronizes"].time_us is None
    assert found["synchronizes"].reason
    assert supervisor.finals(PROBLEM, FINALISTS, num_rounds=1).reasons == ("", "")


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch or cloudpickle is not installed")
def test_functions_of_convolutions_and_of_an_attention_are_checked_and_timed(supervisor: GpuSupervisor) -> None:
    import torch
    from torch.nn.functional import conv2d, scaled_dot_product_attention

    def convs(x: Any, first_weight: Any, first_bias: Any, second_weight: Any, second_bias: Any) -> Any:
        hidden = torch.relu(conv2d(x.permute(0, 3, 1, 2), first_weight.permute(0, 3, 1, 2), first_bias, padding=1))
        return torch.relu(conv2d(hidden, second_weight.permute(0, 3, 1, 2), second_bias)).permute(0, 2, 3, 1)

    def attention(q: Any, attention_keys: Any, attention_values: Any, attention_lengths: Any) -> Any:
        keys, values = (one.nan_to_num(0.0) for one in (attention_keys, attention_values))
        is_seen = torch.arange(keys.shape[2], device="cuda")[None] < attention_lengths[:, None]
        mask = is_seen[:, None, None, :]
        heads = q.reshape(len(q), -1, 1, keys.shape[3])
        found = scaled_dot_product_attention(heads, keys, values, attn_mask=mask, enable_gqa=True)
        return found.masked_fill(~mask.any(dim=-1, keepdim=True), 0).reshape(q.shape)

    def scaled(right: Callable[..., Any], **tensors: Any) -> Any:
        return 1.25 * right(**tensors)

    for workload, name, right in ((CONVS, "second", convs), (ATTENTION, "attention", attention)):
        wrong = partial(scaled, right)
        found = beside(supervisor, {"right": right, "wrong": wrong}, workload)
        assert found["right"].reason == "", found
        assert found["right"].speedup is not None
        assert f"{name}: relative error" in found["wrong"].reason, found
