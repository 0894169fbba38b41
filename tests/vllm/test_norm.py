"""The norm's kernel: its results in Triton's interpreter, and its signals to the previous and next launches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
#: fp16, since the interpreter truncates bf16 instead of rounding it.
NUMBERS = """
import torch
from tuner.vllm.norms.kernel import launch
for columns in (128, 200):
    rows, before = torch.randn(2, 3, columns).half()
    weight, after, normed = torch.rand(columns).half(), torch.empty_like(rows), torch.empty_like(rows)
    both = rows.float() + before.float()
    launch(rows, before, after, normed, weight, 1e-5)
    assert torch.equal(after, both.half())
    right = torch.nn.functional.rms_norm(both.double(), (columns,), eps=1e-5) * weight
    torch.testing.assert_close(normed.double(), right, rtol=1.01 * 2**-11, atol=2**-24)  # rounded once
    wide, again = torch.empty_like(both), torch.empty_like(rows)
    launch(rows, before, wide, normed, weight, 1e-5)
    assert torch.equal(wide, both)
    launch(rows, wide, after, again, weight, 1e-5)
    assert torch.equal(after, (rows.float() + both).half())
"""
CODE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tuner.vllm.norms.kernel import add_norm_kernel
fixed = {"columns": 4096, "block": 4096, "is_dependent": True}
types = dict.fromkeys(("rows", "before", "after", "normed", "weight"), "*bf16")
types |= {"row_step": "i32", "before_step": "i32", "eps": "fp32"} | dict.fromkeys(fixed, "constexpr")
signature = {name: types[name] for name in add_norm_kernel.arg_names}
source = ASTSource(fn=add_norm_kernel, signature=signature, constexprs=fixed)
print(triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"launch_pdl": True}).asm["ptx"])
"""


def ran(program: str, monkeypatch: pytest.MonkeyPatch, wheel: Path, interpreted: str) -> str:
    monkeypatch.setenv("TRITON_INTERPRET", interpreted)
    monkeypatch.setenv("PYTHONPATH", str(wheel))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_numbers(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran(NUMBERS, monkeypatch, wheel, "1")


def test_launches_behind_it_may_begin_before_it_waits_and_it_reads_rows_after(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = ran(CODE, monkeypatch, wheel, "0")
    begin, waited = code.index("griddepcontrol.launch_dependents"), code.index("griddepcontrol.wait")
    # Before its wait: only 4,096 weights, which no kernel writes; after it: rows and residual, and both results.
    assert begin < waited
    early, late = ([part.count(one) for one in ("ld.global", "st.global")] for part in (code[:waited], code[waited:]))
    assert early[0] > 0
    assert (early[1], late) == (0, [2 * early[0], 2 * early[0]])
