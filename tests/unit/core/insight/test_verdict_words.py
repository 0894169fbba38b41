"""The verdict as a sentence: the winner and its lead, with the measured interval."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import builders
from tests.support.attentions import alone, attention
from tests.support.builders import BEST, schedule
from tuner.core.insight.verdict_words import verdict_sentence
from tuner.core.problem.joined import joined_workload
from tuner.core.problem.unknown_op import UnknownOp
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.records import Best, FinalRow, Verdict
from tuner.core.trial.reports.library_recipe import LibraryRecipe
from tuner.core.trial.reports.torch_time import TorchCalls, TorchTime
from tuner.ops.conv.asked import ConvPair, Filters
from tuner.ops.gemm.op import GemmOp

PRODUCTS = builders.workload()
ATTENTION = attention()


def row(kind: PlanKind, time_us: float | None, interval: tuple[float, float] | None = None) -> FinalRow:
    return FinalRow(
        candidate=Candidate(plan_kind=kind, schedule=schedule() if kind.is_ours else None),
        trial_number=0,
        time_us=time_us,
        spread=0.01,
        speedup=None if time_us is None else 100 / time_us,
        speedup_ci95=interval,
    )


def best(verdict: Verdict, winner: PlanKind, *rows: FinalRow) -> Best:
    measured = replace(BEST.environment, simulated=False)
    return replace(BEST, verdict=verdict, winner=winner, finals=rows, torch=None, environment=measured)


def _said(found: Best, workload: Workload = PRODUCTS) -> str:
    return verdict_sentence(found, workload)


def test_a_fused_winner_is_named_with_its_gain_over_the_library_and_over_our_launches() -> None:
    rows = row(PlanKind.LIBRARY, 100.0), row(PlanKind.TWO_LAUNCHES, 90.0), row(PlanKind.FUSED, 80.0, (1.24, 1.26))
    assert _said(best(Verdict.FUSED_WINS, PlanKind.FUSED, *rows)) == (
        "Fused wins by 25.0 % over the library (cuBLASLt in a graph), 95 % interval 24.0 to 26.0 %; "
        "12.5 % over two launches."
    )


def test_a_fused_winner_ahead_of_the_library_alone_says_that_alone() -> None:
    rows = row(PlanKind.LIBRARY, 100.0), row(PlanKind.TWO_LAUNCHES, 110.0), row(PlanKind.FUSED, 80.0)
    sentence = _said(best(Verdict.FUSED_WINS, PlanKind.FUSED, *rows))
    assert sentence == "Fused wins by 25.0 % over the library (cuBLASLt in a graph)."


def test_a_tie_names_the_simpler_kind_and_the_band() -> None:
    rows = row(PlanKind.LIBRARY, 100.0), row(PlanKind.TWO_LAUNCHES, 80.5, (1.23, 1.25)), row(PlanKind.FUSED, 80.0)
    sentence = _said(best(Verdict.TIE, PlanKind.TWO_LAUNCHES, *rows))
    assert sentence == (
        "Run two launches, 1.24 times the speed of the library (cuBLASLt in a graph), 95 % interval 1.23 to 1.25; "
        "fused is within 2.0 % of it (a tie), and is less simple."
    )


def test_a_tie_that_a_fused_kind_wins_names_what_ties_with_it() -> None:
    rows = row(PlanKind.LIBRARY, 100.0), row(PlanKind.TWO_STREAMS, 80.5), row(PlanKind.FUSED, 80.0)
    sentence = _said(best(Verdict.TIE, PlanKind.FUSED, *rows))
    assert sentence.startswith("Run fused, 1.25 times the speed of the library")
    assert "two streams is within" in sentence


def test_the_sentence_of_a_simulated_result_says_so_as_its_table_does() -> None:
    rows = row(PlanKind.LIBRARY, 100.0), row(PlanKind.FUSED, 80.0)
    for verdict, winner in ((Verdict.FUSED_WINS, PlanKind.FUSED), (Verdict.TIE, PlanKind.LIBRARY)):
        found = best(verdict, winner, *rows)
        simulated = replace(found, environment=replace(found.environment, simulated=True))
        assert _said(simulated).endswith(" (simulated).")
        assert "simulated" not in _said(found)


def test_where_the_library_wins_the_sentence_says_how_far_behind_the_best_fused_launch_is() -> None:
    rows = row(PlanKind.LIBRARY, 100.0), row(PlanKind.FUSED, 120.0), row(PlanKind.FUSED_PDL, None)
    sentence = _said(best(Verdict.DO_NOT_FUSE, PlanKind.LIBRARY, *rows))
    assert sentence == "Do not fuse: run the library; the best fused launch takes 1.20 times as long."


def test_where_our_own_launches_win_they_are_named() -> None:
    rows = row(PlanKind.LIBRARY, 100.0), row(PlanKind.TWO_LAUNCHES, 80.0, (1.2, 1.3)), row(PlanKind.FUSED, 100.0)
    sentence = _said(best(Verdict.DO_NOT_FUSE, PlanKind.TWO_LAUNCHES, *rows))
    assert sentence.startswith("Do not fuse: run two launches, 1.25 times the speed of the library")
    assert sentence.endswith("the best fused launch takes 1.25 times as long.")


def test_of_an_attention_the_library_is_pytorchs_and_no_fused_launch_is_missed() -> None:
    ours = row(PlanKind.TWO_LAUNCHES_PDL, 80.0, (1.2, 1.3))
    ours = replace(ours, candidate=replace(ours.candidate, schedule=alone()))
    found = best(Verdict.DO_NOT_FUSE, PlanKind.TWO_LAUNCHES_PDL, row(PlanKind.LIBRARY, 100.0), ours)
    attention = "PyTorch 2.11.0 scaled_dot_product_attention by CUDNN_ATTENTION"
    called = LibraryRecipe(cublaslt_version=130100, beside=False, calls=(), launch_ops=attention)
    assert _said(replace(found, library=called), ATTENTION) == (
        "Run two launches pdl, 1.25 times the speed of the library (PyTorch's attention in a graph), "
        "95 % interval 1.20 to 1.30; the attention has its own launch."
    )
    batched = replace(called, launch_ops="batched products: PyTorch is not installed")
    assert "(cuBLASLt in a graph)" in _said(replace(found, library=batched), ATTENTION)
    lost = replace(found, winner=PlanKind.LIBRARY)
    assert _said(lost, ATTENTION) == "Run the library; the best of tuner's own takes 0.80 times as long."


_3X3 = Filters(filters=64, kernel=3, stride=1)
CONVS = ConvPair(images=1, height=8, width=8, channels=64, first=_3X3, second=_3X3).to_workload()
IN_ONE_CTA = joined_workload(CONVS)
WITH_A_PRODUCT = replace(CONVS, ops=(*CONVS.ops, GemmOp(name="head", source="second", m=64, n=8, k=64)))
OF_A_PACKAGE = UnknownOp.of({"op": "clamp", "name": "bounded", "m": 16, "n": 64}, "clamp")
UNKNOWN = Workload(kind=WorkloadKind.CHAIN, ops=(OF_A_PACKAGE,), dtype=PRODUCTS.dtype)


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (CONVS, "the library (cuDNN in a graph)"),
        (IN_ONE_CTA, "the library (cuDNN in a graph)"),
        (WITH_A_PRODUCT, "the library (cuDNN and cuBLASLt in a graph)"),
        (UNKNOWN, "the library (in a graph)"),
    ],
)
def test_each_kind_names_the_library_of_its_ops(workload: Workload, words: str) -> None:
    rows = row(PlanKind.LIBRARY, 100.0), row(PlanKind.FUSED, 80.0)
    sentence = _said(best(Verdict.FUSED_WINS, PlanKind.FUSED, *rows), workload)
    assert sentence == f"Fused wins by 25.0 % over {words}."


def test_one_cta_for_all_convolutions_has_cudnn_beside_it() -> None:
    rows = row(PlanKind.LIBRARY, 100.0), row(PlanKind.TWO_LAUNCHES_PDL, 90.0), row(PlanKind.JOINED, 80.0)
    sentence = _said(best(Verdict.DO_NOT_FUSE, PlanKind.TWO_LAUNCHES_PDL, *rows), CONVS)
    assert "the library (cuDNN in a graph)" in sentence
    assert "has its own launch" not in sentence


def test_finals_without_a_time_say_so() -> None:
    assert _said(best(Verdict.TIE, PlanKind.LIBRARY)) == "Nothing was timed in the finals."


def test_where_pytorch_was_timed_the_sentence_ends_with_the_winners_speed_over_its() -> None:
    torch = TorchTime(time_us=110.4, library_speedup=1.104, num_rounds=20)
    rows = row(PlanKind.LIBRARY, 100.0), row(PlanKind.FUSED, 80.0)
    fused = replace(best(Verdict.FUSED_WINS, PlanKind.FUSED, *rows), torch=torch)
    assert _said(fused).endswith("(cuBLASLt in a graph); 1.38 times PyTorch's speed.")
    library = replace(best(Verdict.DO_NOT_FUSE, PlanKind.LIBRARY, *rows), torch=torch)
    assert _said(library).endswith("; library has 1.10 times PyTorch's speed.")
    compiled = replace(fused, torch=replace(torch, calls=TorchCalls.COMPILED))
    assert _said(compiled).endswith("; 1.38 times torch.compile's speed.")
    without = replace(fused, torch=TorchTime(reason="PyTorch cannot be imported"))
    assert "PyTorch" not in _said(without)


def test_where_torch_compile_is_the_library_the_sentence_names_it_once() -> None:
    torch = TorchTime(time_us=100.0, library_speedup=0.9, num_rounds=20, calls=TorchCalls.COMPILED)
    rows = row(PlanKind.LIBRARY, 100.0), row(PlanKind.FUSED, 80.0)

    def of(verdict: Verdict, winner: PlanKind) -> str:
        return _said(replace(best(verdict, winner, *rows), torch=torch))

    assert of(Verdict.DO_NOT_FUSE, PlanKind.LIBRARY).startswith("Do not fuse: run torch.compile; the best fused")
    won = of(Verdict.FUSED_WINS, PlanKind.FUSED)
    assert won == "Fused wins by 25.0 % over the library (torch.compile in a graph)."
    tied = of(Verdict.TIE, PlanKind.LIBRARY)
    assert tied.startswith("Run torch.compile; fused is within")
