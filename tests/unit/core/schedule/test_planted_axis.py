"""A new axis is one field: it is planted in a copy of the program, and everything that handles axes includes it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lanes import soak_unless
from tests.support.repository import ROOT, copy_folder

#: For a launch, for the order between ops, for each tile op, and for an attention: the file, the line before it, the
#: field.
PLANTED = {
    "launch": (
        "tuner/core/schedule/tiling.py",
        "    #: L2 hint for weights.\n",
        "    #: As a launch might have it.\n"
        "    planted: int = axis(1, values=(1, 2), near=(1, 2), word='planted{}', since='9.9',\n"
        "        sentence='{} CTAs are planted.', values_in_words='1, 2',\n"
        "        meaning='CTAs that are planted')\n",
    ),
    "order": (
        "tuner/core/schedule/ordering.py",
        "    #: The ops with which the later runs of a chain begin",
        "    #: As above.\n"
        "    planted: int = axis(1, values=(1, 2), near=(1, 2), word='planted{}', since='9.9',\n"
        "        sentence='{} CTAs are planted.', values_in_words='1, 2',\n"
        "        meaning='CTAs that are planted')\n",
    ),
    "attention": (
        "tuner/ops/attention/schedule.py",
        "    #: How queries and cache are loaded into shared memory. Proofs are named by",
        "    #: As above.\n"
        "    planted: int = axis(1, values=(1, 2), near=(1, 2), word='planted{}', since='9.9',\n"
        "        sentence='{} CTAs are planted.')\n",
    ),
}

_CODE = """
import gzip, json, sys
from dataclasses import replace
from tests.house import axes_page
from tests.support.attentions import attention, space_with
from tests.support.cases import H200
from tests.support.spaces import space_of
from tuner.client.exports.axes import axes_of
from tuner.core.insight.explain import differences
from tuner.core.legal.legality import check_schedule, is_legal
from tuner.ops.gemm.pairs import ffn_pair
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate, fused
from tuner.core.schedule.codec import Frozen
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.errors import IllegalSchedule
from tuner.schedule_files.schema import faults, schedule_schema
from tuner.search.model.axes import distributions, from_params, to_params
from tuner.search.model.pool import Pool
from tuner.search.searcher import Searcher
from tuner.wire.responses.words import candidate_words
import tuner

assert tuner.__file__.startswith(sys.argv[2]), tuner.__file__
level = sys.argv[1]
kept = json.loads(gzip.decompress(open("tests/unit/frozen/documents.json.gz", "rb").read()))
for row in kept.values():
    assert Schedule.from_json(row["schedule"]).digest == row["digests"][1], "a digest of before"

workload = attention(d_out=512) if level == "attention" else ffn_pair(m=16, d_in=1024, d_hidden=2048, d_out=1024)
space = space_with(workload) if level == "attention" else space_of(workload, H200)
kind = PlanKind.TWO_LAUNCHES if level == "attention" else PlanKind.FUSED
plain = next(iter(space))

def with_axis(value):
    if level == "attention":
        return plain.but(launch_ops=(replace(plain.launch_ops[0], planted=value),))
    where = {"launch": "tiling", "order": "ordering"}[level]
    return plain.but(**{where: replace(getattr(plain, where), planted=value)})

name = "attention_planted_0" if level == "attention" else "planted"
other = with_axis(2)
assert "planted" not in json.dumps(plain.to_json()) + str(plain)
assert plain.digest != other.digest
assert Schedule.from_json(json.loads(json.dumps(other.to_json()))) == other
assert "planted" not in repr(Frozen(plain.tiling)) + "".join(repr(Frozen(one)) for one in plain.launch_ops)
assert " planted2" in str(other)
told = "2 CTAs are planted."
assert told in candidate_words(Candidate(plan_kind=kind, schedule=other), workload)
assert told not in candidate_words(Candidate(plan_kind=kind, schedule=plain), workload)
assert to_params(other)[name] == 2 and from_params(to_params(other)) == other and name in distributions(plain)
rows = Pool(space, kind, 0).features([plain, other])
assert (rows[0] != rows[1]).sum() == 1, "the model sees it"
assert other in space.neighbours(plain) and plain in space.neighbours(other)
assert is_legal(workload, H200, other)
try:
    check_schedule(workload, H200, with_axis(3))
    raise AssertionError("3 is no value of it")
except IllegalSchedule as error:
    assert "planted 3: use one of 1, 2" in str(error), error
assert differences(plain, other) == ["planted 1 -> 2"]
assert not list(faults(json.loads(json.dumps(other.to_json())), schedule_schema()))
asked = {"plan_kind": str(kind), "schedule": json.loads(json.dumps(plain.to_json()))}
assert any(axis.endswith("planted") and value == 1 for axis, value in axes_of(asked).items())
if level != "attention":
    text = axes_page.drawn(axes_page.PAGE.read_text())
    assert "| 1, 2 | CTAs that are planted |" in text
    assert plans_for(workload, H200, fused(other))
assert Searcher(space, seed=0, num_trials=8).ask() is not None
print("known")
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program, its workers and the test files that they need."""
    to = tmp_path_factory.mktemp("planted")
    for folder in ("tuner", "workers", "tests/support", "tests/house", "tests/unit/frozen", "docs"):
        copy_folder(folder, to)
    for name in ("__init__.py",):
        shutil.copy(ROOT / "tests" / name, to / "tests" / name)
    return to


# In CI, tests/house/test_planted_changes.py plants a change.
@pytest.mark.soak
@pytest.mark.parametrize("level", soak_unless(lambda _, level: level == "attention", PLANTED))
def test_a_planted_axis_is_known_everywhere(copy: Path, level: str) -> None:
    file, before, field = PLANTED[level]
    path, text = copy / file, (copy / file).read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, field + before))
    try:
        command = [sys.executable, "-B", "-c", _CODE, level, str(copy)]
        where = os.environ | {"PYTHONPATH": str(copy)}
        ended = subprocess.run(command, cwd=copy, env=where, capture_output=True, text=True, timeout=280, check=False)
    finally:
        path.write_text(text)
    assert (ended.returncode, ended.stdout) == (0, "known\n"), ended.stderr[-2000:]
