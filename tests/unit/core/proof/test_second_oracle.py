"""The second oracle shares no code with the prover and the first oracle, agrees with both, and finds planted faults.

`python -m tests.soak.proof` lets it judge 100,000 plans; its counts are in benchmarks/results/soak/proof.json.
"""

from __future__ import annotations

import random
import re
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import tests.support.second_oracle as second_oracle
from tests.support.proof import judged_plans
from tests.support.second_oracle.agreement import COLUMNS, DISAGREEMENTS, counts, judged_by_both, judged_cases
from tests.support.second_oracle.cases import CHAINS, GRAPHS, Case, ops_of, random_case
from tests.support.second_oracle.device import is_over
from tests.support.second_oracle.judge import LAUNCHES, judge
from tests.support.second_oracle.mutators import EXTREMES, MUTATORS, OF_EPILOGUES, any_word
from tests.support.second_oracle.table import SLOT_BYTES
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.plan.table import words as plan_words
from tuner.core.plan.table.words import Plan
from tuner.core.proof import verify as prover
from tuner.core.proof.liveness import check_liveness

FOLDER = Path(second_oracle.__file__).parent
#: The index of the number of slots in a plan's header.
NUM_SLOTS = 14


def imports_of(path: Path) -> set[str]:
    """Modules that a file imports."""
    return set(re.findall(r"^ *(?:from|import) ([\w.]+)", path.read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize("name", ["table", "device", "explore", "judge", "mutators"])
def test_the_oracle_knows_nothing_of_the_project_but_itself(name: str) -> None:
    ours = {one for one in imports_of(FOLDER / f"{name}.py") if one.split(".")[0] in ("tuner", "tests", "benchmarks")}
    assert {one for one in ours if not one.startswith(second_oracle.__name__)} == set()


def test_nothing_of_it_imports_the_first_oracle() -> None:
    assert {"tests.support.oracle", "tests.support.proof"} & set().union(*map(imports_of, FOLDER.glob("*.py"))) == set()


@pytest.mark.slow
def test_the_prover_and_the_oracle_agree_on_plans_of_which_any_word_was_changed() -> None:
    rows = counts(judged_cases(seed=3, count=400))
    total = {name: sum(int(row[name]) for row in rows) for name in COLUMNS}
    assert [total[name] for name in DISAGREEMENTS] == [0, 0, 0]
    assert min(total[name] for name in ("accepted", "words", "coverage", "capacity", "safety", "liveness")) > 2
    assert {row["mutation"] for row in rows} >= {"none", *MUTATORS, *OF_EPILOGUES}
    assert sum(int(row["chains"]) for row in rows) > 0.3 * total["plans"]


def test_a_cta_beyond_the_columns_requests_rows_for_those_beside_it() -> None:
    """With 64 columns in tiles of 128, the second CTA has none, but copies its share of the inputs into both."""
    workload, chosen = next(
        (one, tiling) for one, tiling in CHAINS if tiling.cluster_n == 2 and one.tile_ops[2].n < tiling.tiles[2].n
    )
    op = ops_of(workload, chosen, (0, 1, 2))[2]
    mine, beyond = (0, 0, 0), (0, 0, 1)
    assert op.reads[beyond] == op.reads[mine]
    assert all(op.reads[beyond])
    assert (op.writes[beyond], op.late[beyond]) == ([], [])
    rng = random.Random(55)  # the fifth plan of this seed is one
    cases = (random_case(rng) for _ in range(2000))
    some = (judged_by_both(one) for one in cases if one.graph.tiling == chosen and len(one.graph.op_indices) == 3)
    judged = next(one for one in some if one.verdict.in_order == {"race"})
    assert (judged.refusal, judged.kinds) == ("safety", [])


def test_both_count_the_sums_of_a_gated_ops_parts_twice() -> None:
    rng = random.Random(1)
    cases = (random_case(rng) for _ in range(5000))
    case = next(one for one in cases if one.mutation == "none" and has_gated_parts(one))
    slot_bytes = max(op.sums_bytes * op.most_parts for op in case.kernel.ops)
    for num_slots, refusal in ((SLOT_BYTES // slot_bytes + 1, "capacity"), (SLOT_BYTES // slot_bytes, None)):
        words = list(struct.unpack(f"<{len(case.raws[0]) // 4}i", case.raws[0]))
        words[NUM_SLOTS] = num_slots
        judged = judged_by_both(replace(case, raws=(struct.pack(f"<{len(words)}i", *words),)))
        assert (judged.refusal, judged.kinds) == (refusal, [])


def has_gated_parts(case: Case) -> bool:
    pairs = zip(case.graph.workload.tile_ops, case.kernel.ops, strict=True)
    return any(
        gemm.gated and op.sums_bytes * op.most_parts * 2**16 > SLOT_BYTES for gemm, op in pairs if op.most_parts > 1
    )


# In CI, the prover agrees with each of the oracles.
@pytest.mark.soak
def test_both_oracles_agree_on_plans_of_the_first_ones_mutations() -> None:
    both: Counter[tuple[bool, bool]] = Counter()
    for judged, plan, graph, resident in judged_plans(seed=23, count=150):
        case = Case(graph=graph, resident=resident, raws=(plan.words.tobytes(),))
        both[bool(judged.faults), bool(case.verdict().faults)] += 1
    assert both[True, False] == both[False, True] == 0
    assert min(both[True, True], both[False, False]) > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "check", ["check_safety", "check_liveness", "check_epochs", "check_capacity", "check_coverage"]
)
def test_a_prover_without_one_of_its_checks_is_found_out(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover, check, lambda *_, **__: None)
    assert accepted_falsely(seed=11)


def test_a_prover_that_counts_no_shares_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover, "check_shares", lambda *_: None)
    assert accepted_falsely(seed=51, which=lambda case: case.mutation == "a part less").kernel.scatters


def test_a_prover_in_which_no_part_waits_for_another_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover, "check_parts_at_once", check_liveness)
    assert accepted_falsely(seed=2).kernel.scatters


def test_a_prover_that_looks_at_no_slot_is_found_out_by_tiles_of_last_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover, "_check_slots", lambda *_: None)
    assert accepted_falsely(seed=45, which=lambda case: case.splits_tails)


def test_a_prover_that_bounds_no_word_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an earlier version: a threshold of -2^31 before a correct wait was accepted."""
    monkeypatch.setattr(plan_words, "_check_ranges", lambda *_, **__: None)
    assert accepted_falsely(seed=5)


def accepted_falsely(seed: int, which: Callable[[Case], bool] = lambda _: True) -> Case:
    """The first broken plan that is accepted; a crash of the weakened prover does not count."""
    rng = random.Random(seed)
    for case in (random_case(rng) for _ in range(4000)):
        with suppress(Exception):
            if which(case) and "false_accept" in judged_by_both(case).kinds:
                return case
    raise AssertionError("none of 4000 plans")


@pytest.mark.parametrize(
    ("seen", "base", "threshold", "size", "over"),
    [
        (0, 0, 0, 1, True),
        (1, 0, 2, 1, False),
        (2, 0, 2, 1, True),
        (2**31 - 1, 2**31 - 2, 2, 1, False),
        (2**31, 2**31 - 2, 2, 1, True),
        (2**32 - 1, 2**32 - 2, 2, 1, False),
        (0, 2**32 - 2, 2, 1, True),
        (5, 0, -(2**31), 1, False),
        (5, 0, -(2**30), 2, False),
        (5, 0, -(2**30), 1, True),
        (0, 0, 2**30, 4, True),
    ],
)
def test_a_wait_is_over_as_the_devices_words_say(seen: int, base: int, threshold: int, size: int, over: bool) -> None:
    """The last one wraps: 2^30 posts of a cluster of four count as none."""
    assert is_over(seen, base, threshold, size) is over


def test_counters_about_to_reach_2_31_and_to_begin_again_are_among_the_launches() -> None:
    for total in (1, 2, 3, 4, 6):
        starts = [launch * total % 2**32 for launch in LAUNCHES]
        assert any(start <= 2**31 - 1 < start + total for start in starts)
        assert any(start < 2**32 <= start + total for start in starts)


def test_every_word_has_its_turn_and_extreme_values_have() -> None:
    words = list(range(1000, 1040))
    rng, changed = random.Random(0), Counter[int]()
    values = set()
    for _ in range(4000):
        new = any_word(words, rng)
        different = [at for at in range(40) if new[at] != words[at]]
        changed.update(different)
        values |= {new[at] for at in different}
    assert set(changed) == set(range(40))
    assert set(EXTREMES) <= values


def test_a_word_that_is_no_plans_is_told() -> None:
    kernel = Case(graph=tile_graph(*GRAPHS[0]), resident=1, raws=()).kernel
    assert judge(b"", kernel).rules == judge(b"\0" * 64, kernel).rules == judge(b"TUNR" * 16, kernel).rules == {"words"}


def test_what_is_judged_is_what_the_prover_reads() -> None:
    for judged in judged_cases(seed=8, count=30):
        if judged.refusal is None:
            assert [Plan.from_words(raw).table for raw in judged.case.raws] == list(judged.case.raws)
