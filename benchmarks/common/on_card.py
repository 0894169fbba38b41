"""The library's graph and those of checked kernels on the visible card, for a benchmark that takes samples itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tuner.core.trial.evaluator import Problem
from tuner.workers.builder.nvrtc import compile_source
from tuner.workers.builder.prepare import PreparedKernel
from tuner.workers.source.render import device_text


@contextmanager
def graphs_on_card(problem: Problem, arch: str, kernels: Sequence[PreparedKernel]) -> Iterator[tuple[Any, list[Any]]]:
    """The problem's timer, and its graphs: the library's, then one of each kernel, once its numbers are right.

    Raises:
        WrongNumbers: a kernel's are not.
        Overwritten: at the end, a kernel wrote where it must not.
    """
    import cupy

    from tuner.workers.gpu.check import check_numbers
    from tuner.workers.gpu.cublaslt import CublasLt
    from tuner.workers.gpu.problem_on_card import ProblemOnCard
    from tuner.workers.gpu.session import Kernels, load_runner

    tools = cupy.cuda.function.Module()
    tools.load(compile_source(device_text("tools.cu"), arch)[0])
    on_card, loaded = ProblemOnCard(problem, tools, CublasLt(), None), Kernels()
    runners = [load_runner(on_card, kernel.work, loaded) for kernel in kernels]
    for runner, kernel in zip(runners, kernels, strict=True):
        check_numbers(on_card.data, on_card.comparer, partial(on_card.run_once, runner), kernel.work)
    yield on_card.timer, [on_card.library_graph, *(on_card.timer.capture(runner) for runner in runners)]
    on_card.timer.rest()
    for runner in runners:
        on_card.check_intact(runner)
    loaded.unload()
