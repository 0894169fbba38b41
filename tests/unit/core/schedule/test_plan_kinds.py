from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise

import pytest

from tests.support.repository import ROOT
from tuner.core.problem.objective import LaunchStyle
from tuner.core.problem.workload import MAX_OPS
from tuner.core.schedule.plan_kinds import PLAN_KINDS, PlanKind, in_turn

PATH = ROOT / "tuner/core/schedule/plan_kinds.py"


def test_every_kind_has_its_row_in_the_order_of_simplicity() -> None:
    assert list(PLAN_KINDS) == list(PlanKind)
    assert next(iter(PlanKind)) is PlanKind.LIBRARY
    fused = [kind.is_fused for kind in PlanKind]
    assert fused == sorted(fused)  # separate launches before fused ones
    assert all(before.is_ours <= kind.is_ours for before, kind in pairwise(PlanKind))


def test_a_kind_that_launches_in_another_way_has_a_base_that_is_searched_and_its_turns() -> None:
    for kind in PlanKind:
        assert (kind.base is not None) == bool(kind.row.turns)
        assert kind.base is None or kind.base.is_searched
        assert kind.is_ours or not (kind.is_fused or kind.is_side_by_side or kind.is_programmatic)
    for num_ops in range(1, MAX_OPS + 1):
        having = [kind for kind in PlanKind if kind.is_for(num_ops)]
        turns = [turn for kind in having for turn in kind.row.turns]
        assert len(set(turns)) == len(turns) == len(in_turn(num_ops))
        assert {kind for kind in having if kind.base} == set(in_turn(num_ops))
        assert sum(kind.is_searched and kind.is_apart for kind in having) == 1


def test_the_circle_of_pairs_is_as_it_was_and_longer_chains_have_their_own() -> None:
    pdl, apart = PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES_PDL
    assert in_turn(2) == (pdl, apart, PlanKind.TWO_STREAMS, pdl)
    assert in_turn(4) == (pdl, PlanKind.N_LAUNCHES_PDL, pdl)


def test_a_programmatic_kind_is_its_base_launched_otherwise() -> None:
    of_pairs = [kind for kind in PlanKind if kind.is_programmatic and kind.is_for(2)]
    assert of_pairs == [PlanKind.TWO_LAUNCHES_PDL, PlanKind.FUSED_PDL]
    assert PlanKind.N_LAUNCHES_PDL.launched_plainly is PlanKind.N_LAUNCHES
    assert PlanKind.FUSED_PDL.launched_plainly is PlanKind.FUSED
    assert PlanKind.TWO_LAUNCHES_PDL.launched_plainly is PlanKind.TWO_LAUNCHES
    assert PlanKind.TWO_STREAMS.launched_plainly is PlanKind.TWO_STREAMS
    assert PlanKind.FUSED_PDL.launch_style is LaunchStyle.PDL
    assert PlanKind.FUSED.launch_style is LaunchStyle.PLAIN


def test_pairs_and_longer_chains_have_kinds_of_their_own() -> None:
    named = {PlanKind.LIBRARY, PlanKind.FUSED, PlanKind.FUSED_PDL}
    pair, chain = ({kind for kind in PlanKind if kind.is_for(num_ops)} - named for num_ops in (2, 4))
    assert pair >= {PlanKind.TWO_LAUNCHES, PlanKind.TWO_LAUNCHES_PDL, PlanKind.TWO_STREAMS}
    assert chain == {PlanKind.N_LAUNCHES, PlanKind.N_LAUNCHES_PDL, PlanKind.RUNS}


def test_people_read_a_heading_and_a_sentence() -> None:
    assert PlanKind.TWO_LAUNCHES_PDL.heading == "two launches pdl"
    sentences = [kind.row.sentence for kind in PlanKind]
    assert len(set(sentences)) == len(sentences)
    assert all(sentence.endswith(".") for sentence in sentences)


#: A kind that does not exist yet: three launches, for example, or a launch by another runtime. Only the table knows it.
MEMBER = '    FUSED_PDL = "fused_pdl"\n    FUSED_AGAIN = "fused_again"\n'
ROW = """        turns=(0, 3),
    ),
    PlanKind.FUSED_AGAIN: KindRow(
        sentence="One persistent launch computes every op, again.",
        num_finalists=2,
        is_fused=True,
        base=PlanKind.FUSED,
        turns=(4,),
    ),
"""

#: Replaces the module's table with one that has the new kind before it is read, then searches, judges and reports.
PROGRAM = """
import sys, types
from tuner.core.schedule import plan_kinds  # its package, and what it needs itself
source = open(sys.argv[1]).read()
member, row = sys.argv[2:]
old_member, old_row = '    FUSED_PDL = "fused_pdl"\\n', '        turns=(0, 3),\\n    ),\\n'
assert source.count(old_member) == source.count(old_row) == 1
source = source.replace(old_member, member).replace(old_row, row)
exec(compile(source, sys.argv[1], "exec"), plan_kinds.__dict__)
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.client.cli import main
from tuner.core.problem.gpu import parse_target
from tuner.core.problem.objective import FinalsProcedure
from tuner.ops.gemm.pairs import ffn_pair
from tuner.core.space.space import Space
from tuner.core.trial.evaluator import Problem, evaluate
from tuner.core.trial.job import Objective, Trial
from tuner.search import Searcher
from tuner.service.finals.finals import choose_finalists, judge
from tuner.wire.responses.words import candidate_words
from tuner.workers.simulated.evaluator import Faults, SimulatedEvaluator

workload, target = ffn_pair(m=16, d_in=512, d_hidden=1024, d_out=512), parse_target("simulated:h200")
problem = Problem(workload=workload, objective=Objective())
twin = SimulatedEvaluator(target, faults=Faults(hang=0, crash=0, wrong_numbers=0))
searcher, trials = Searcher(Space(workload, target.gpu), seed=0, num_trials=30), []
for number in range(30):
    candidate = searcher.ask()
    outcome = evaluate(twin, problem, candidate)
    one = {"number": number, "num_known": number, "started_at": 0.0, "finished_at": 0.0}
    trials.append(Trial(candidate=candidate, outcome=outcome, **one))
    searcher.tell(trials[-1])
finalists = choose_finalists(trials)
times = twin.finals(problem, tuple(trial.candidate for trial in finalists), num_rounds=10)
judgement = judge(finalists, times, FinalsProcedure(num_rounds=10))
new = PlanKind("fused_again")
rows = [row for row in judgement.rows if row.candidate.plan_kind is new]
assert 1 <= len(rows) <= 2 and all(row.time_us for row in rows), judgement
assert candidate_words(rows[0].candidate, workload)[0] == "One persistent launch computes every op, again."
listing = main.get_command(main.make_context("tuner-client", ["trials"]), "trials")
assert "fused_again" in [str(one) for option in listing.params if option.name == "plan_kind"
                         for one in option.type.choices]
"""


# In CI, tests/house/test_planted_changes.py plants changes, and the next test has the files of a kind.
@pytest.mark.soak
def test_a_new_kind_is_searched_judged_told_and_offered_once_the_table_has_it() -> None:
    command = [sys.executable, "-c", PROGRAM, str(PATH), MEMBER, ROW]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


#: A rung of a pack's ladder is a kernel or the library: that is an answer, not a plan kind.
NO_KIND = ("tuner/packs/", "tuner/client/commands/packs/making.py", "tuner/client/terminal/pack_tables.py")


@pytest.mark.slow
@pytest.mark.parametrize("kind", PlanKind)
def test_few_files_name_a_kind(kind: PlanKind) -> None:
    """The table, and code of a search or a launch that is specific to the kind: the files to edit for a new kind."""
    # The word "library" is also a column, a line of a chart and a field.
    word = rf"[=!]= ['\"]{kind}['\"]" if kind is PlanKind.LIBRARY else rf"['\"]{kind}['\"]"
    named = re.compile(rf"PlanKind\.{kind.name}\b|{kind.name} = \"{kind}\"|={kind}&|{word}")
    found = [
        path.relative_to(ROOT).as_posix()
        for folder in ("tuner", "workers")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".html", ".js", ".cuh", ".cu"} and named.search(path.read_text())
    ]
    found = [name for name in found if not name.startswith(NO_KIND)]
    assert "tuner/core/schedule/plan_kinds.py" in found
    assert len(found) <= 6, found
