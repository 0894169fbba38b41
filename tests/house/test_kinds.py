"""Nothing outside its own files names a kind of op, but for a frozen list that may only shrink."""

from __future__ import annotations

import pytest

from tests.house import kinds


def test_no_file_names_a_kind_more_often_than_the_frozen_list_allows() -> None:
    """A file that moved takes its row along: `python -m tests.house.kinds` renews the list, if it did not grow."""
    assert kinds.grown(kinds.named_in(kinds.program()), kinds.frozen()) == []


@pytest.mark.parametrize(
    "source",
    [
        "from tuner.ops import attention",
        "import tuner.ops.attention.op as op",
        "from tuner.core.problem.ops import AttentionOp as Other",
        "isinstance(op, AttentionOp)",
        "schedule.attentions",
        "def attention_us(): ...",
        "def forecast(attentions): ...",
        "forecast(attention=1)",
        "kind = 'attention'",
        "KINDS = {'op:attention': 1}",
        "text = f'of {op} decode-attention'",
        "match op:\n    case {'op': 'attention'}: ...",
        "match op:\n    case Other() as attention: ...",
    ],
)
def test_each_way_to_name_a_kind_is_counted(source: str) -> None:
    assert kinds.count(source)["attention"] >= 1


@pytest.mark.parametrize("source", ['"""Decode attention."""', "x = 1  # attention", "inattentive = gemma = 1"])
def test_prose_and_other_words_do_not_count(source: str) -> None:
    assert not kinds.count(source)


def test_a_name_more_than_the_list_has_is_told_with_its_file() -> None:
    allowed = {"attention": {"tuner/one.py": 2}, "gemm": {}}
    assert kinds.grown({"attention": {"tuner/one.py": 2}}, allowed) == []
    assert kinds.grown({"attention": {"tuner/one.py": 3}}, allowed) == [
        "tuner/one.py names attention 3 times, and 2 are allowed"
    ]
    assert kinds.grown({"attention": {"tuner/other.py": 1}}, allowed) == [
        "tuner/other.py names attention 1 times, and 0 are allowed"
    ]


def test_a_file_of_one_kind_that_names_another_counts() -> None:
    assert kinds.is_own("attention", "tuner/ops/attention/seeds.py")
    assert kinds.is_own("attention", "tuner/ops/attention/rules.py")
    assert not kinds.is_own("gemm", "tuner/ops/attention/seeds.py")
    assert not kinds.is_own("attention", "tuner/core/problem/workload.py")
