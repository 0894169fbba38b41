"""A process that waits for its GPU has already loaded what its first kernel needs."""

from __future__ import annotations

import subprocess
import sys

from tests.support.repository import ROOT

#: Does what a child does before it takes the card, then runs its first kernel; prints the modules that this imported.
PROGRAM = """
import sys
from tuner.workers.gpu.child import _import_all
assert _import_all() is None
before = set(sys.modules)
import cupy
(cupy.random.default_rng(1).random(64, dtype=cupy.float32) * 2 - 1).astype(cupy.float16)
cupy.cuda.Device().synchronize()
print(*set(sys.modules) - before)
"""


def test_the_first_kernel_imports_no_package_that_takes_long(card: object) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"cupyx", "optuna", "scipy", "asyncio"} & set(done.stdout.split()), done.stdout
