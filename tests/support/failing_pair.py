"""A pair of launches on a GPU, the second of which fails: python -m tests.support.failing_pair PACK LIBCUDA.

It runs in a separate process, because a process loads only one driver: `LIBCUDA` is failing_libcuda.c, compiled.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

import cupy

from tests.support import runtime_on_card as on_card
from tests.support.arrays_on_card import operands
from tuner.runtime import RuntimeFailure, load

ROWS = 48
#: Launches of a pair: the first one, the start gate, the second one.
NUM_LAUNCHES = 3


def failure_of(call: Any) -> str:
    """The error message of a call that must fail."""
    try:
        call()
    except RuntimeFailure as error:
        return str(error)
    return ""


def main(pack_path: str, library: str) -> None:
    """Prints the outcome as JSON."""
    os.environ["TUNER_LIBCUDA"] = library
    driver, of = ctypes.CDLL(library), operands(on_card.workload(ROWS))
    pack, stream = load(pack_path), cupy.cuda.Stream(non_blocking=True)
    ffn, worst, sentences = pack.bind(of.weights), 0.0, []
    cupy.cuda.Device().synchronize()

    def launch() -> Any:
        y = of.output(ROWS)
        cupy.cuda.Device().synchronize()
        ffn(of.x, out=y, stream=stream.ptr)
        return y

    for behind in range(1, NUM_LAUNCHES):
        driver.fail_behind(behind)
        sentences.append([failure_of(launch), failure_of(launch)])
        pack.reset(stream.ptr)
        for _ in range(3):
            y = launch()
            stream.synchronize()
            worst = max(worst, of.rel_error(y, ROWS) / of.workload.dtype.row.max_rel_error)
    y = of.output(ROWS)
    cupy.cuda.Device().synchronize()
    stream.begin_capture()
    driver.fail_behind(NUM_LAUNCHES - 1)
    sentences.append([failure_of(lambda: ffn(of.x, out=y, stream=stream.ptr)), ""])
    stream.end_capture()  # fails if a side stream is still open
    pack.reset(stream.ptr)
    y = launch()
    stream.synchronize()
    worst = max(worst, of.rel_error(y, ROWS) / of.workload.dtype.row.max_rel_error)
    print(json.dumps({"sentences": sentences, "worst": worst, "aborts": pack.aborts()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
