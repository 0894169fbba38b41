"""The benchmark of builds ahead: it builds what a job builds, once, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.rows import choose_rows
from benchmarks.cpu.search import build_alone, run_job
from tuner.core.trial.job import JobState


@pytest.mark.slow
def test_a_job_compiles_each_source_once_and_its_builds_alone_are_the_same(tmp_path: Path) -> None:
    [row] = choose_rows(names=["64x512x512+64x128x512"])
    ended, job_s, evaluator = run_job(row, 4, tmp_path)
    assert (ended.job.state, ended.job.num_measured) == (JobState.SUCCEEDED, 4)
    tilings = {trial.candidate.schedule.tiling for trial in ended.trials if trial.candidate.schedule}
    assert 1 <= len(evaluator.sources) <= len(tilings)
    assert {path.stem for path in (tmp_path / "job-cache").glob("*.cubin")} == set(evaluator.sources)
    assert build_alone(list(evaluator.sources.values()), evaluator.target.gpu.arch, tmp_path) > 0
    alone = {path.stem for path in (tmp_path / "alone-cache").glob("*.cubin")}
    assert set(evaluator.sources) < alone, "and one more, so that the compiler's process has started"
    assert job_s >= ended.job.search_s
