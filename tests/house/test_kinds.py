"""No code outside its folder names an op kind, except for a list of names that stay, each with its reason."""

from __future__ import annotations

import pytest

from tests.house import kinds

FROZEN = kinds.Frozen.read()
KNOWN = ("attention", "gemm")


@pytest.mark.slow
def test_names_of_kinds_are_those_of_the_list() -> None:
    """If a file moves, move its entry in the list. To keep a name, add it to the list with a reason."""
    found = kinds.named_in(kinds.sources(), FROZEN.kinds)
    assert FROZEN.grown(found) == []
    assert FROZEN.idle(found) == []


def test_all_that_the_wheel_brings_is_read_and_each_kind_that_it_brings_is_looked_for() -> None:
    read = {path.relative_to(kinds.ROOT).as_posix() for path in kinds.sources()}
    for room in ("tuner/core", "tuner/api/templates", "tuner/api/static", "workers/kernels", "migrations/versions"):
        assert any(place.startswith(f"{room}/") for place in read), room
    assert set(KNOWN) <= set(kinds.kinds())


def named(source: str, path: str = "tuner/core/some.py") -> dict[str, int]:
    return kinds.count(path, source, KNOWN)


@pytest.mark.parametrize(
    "source",
    [
        "from tuner.ops import attention",
        "from tuner.ops import attention as other",
        "import tuner.ops.attention.op as op",
        "from ..ops.attention import op",
        "import another as attention",
        "from tuner.core.problem.ops import AttentionOp as Other",
        "importlib.import_module('tuner.ops.attention')",
        "importlib.import_module(f\"tuner.ops.{'attention'}.op\")",
        "importlib.import_module('tuner.ops.' + 'atten' + 'tion')",
        "importlib.import_module(''.join(('tuner.ops.', 'atten', 'tion')))",
        "kind = 'atten' 'tion'",
        "kind = b'attention'",
        "isinstance(op, AttentionOp)",
        "schedule.attentions",
        "schedule.attentions = 1",
        "def attention_us(): ...",
        "async def attention_us(): ...",
        "class Attention: ...",
        "def forecast(attentions): ...",
        "def forecast(*attentions): ...",
        "forecast(attention=1)",
        "kind = 'attention'",
        "kind = 'selfattention'",
        "kind = SGEMM",
        "KINDS = {'op:attention': 1}",
        "text = f'of {op} decode-attention'",
        "def of(op: 'AttentionOp'): ...",
        "match op:\n    case {'op': 'attention'}: ...",
        "match op:\n    case Other() as attention: ...",
        "match op:\n    case AttentionOp(): ...",
        "match op:\n    case Other(attention=1): ...",
        "match op:\n    case {**attention}: ...",
        "match op:\n    case [*attention]: ...",
        "try: ...\nexcept Error as attention: ...",
        "global attention",
        "__all__ = ['attention']",
    ],
)
def test_each_way_to_name_a_kind_is_found(source: str) -> None:
    assert named(source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("workers/kernels/common/some.cuh", "struct AttentionArgs {};"),
        ("workers/kernels/common/tools.cu", "tuner_attention(x);"),
        ("tuner/api/templates/some.html", "<p>{% if op.attention %}</p>"),
        ("tuner/api/templates/some.html", "<p>{{ op.gemm }}</p>"),
        ("tuner/api/static/some.js", "if (op === 'attention') draw();"),
        ("tuner/core/attention.py", ""),
        ("tuner/attention/some.py", ""),
        ("tuner/ops/gemm/some.py", "kind = 'attention'"),
        ("tuner/ops/gemm/device/attention.cuh", ""),
        ("tuner/ops/attention/card/some.py", "from tuner.ops.gemm.op import GemmOp"),
    ],
)
def test_a_kind_is_found_in_every_file_and_in_its_name_and_where_another_kind_names_it(path: str, source: str) -> None:
    assert named(source, path)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("tuner/core/some.py", '"""Decode attention."""'),
        ("tuner/core/some.py", "x = 1  # attention"),
        ("tuner/core/some.py", "inattentive = gemma = 1"),
        ("workers/kernels/common/some.cuh", "int x;  // attention"),
        ("tuner/api/templates/some.html", "<p>A kernel of attention.</p>"),
        ("tuner/ops/attention/some.py", "kind = 'attention'"),
    ],
)
def test_prose_other_words_and_the_kinds_own_folder_do_not_count(path: str, source: str) -> None:
    assert not named(source, path)


def frozen(names: dict[str, int]) -> kinds.Frozen:
    good = {"a released key": {"tuner/one.py": {"attentions": 1}}}
    places = {"for good": good, "anywhere in": {"tuner/vllm/": "theirs"}, "to go": {"tuner/two.py": names}}
    return kinds.Frozen({"kinds": KNOWN, **places})


def test_a_name_more_than_the_list_has_is_told_with_its_file_and_one_fewer_too() -> None:
    allowed = frozen({"gemm": 2})
    found = {"tuner/one.py": {"attentions": 1}, "tuner/two.py": {"gemm": 2}, "tuner/vllm/x.py": {"Attention": 9}}
    assert (allowed.grown(found), allowed.idle(found)) == ([], [])
    more = {**found, "tuner/one.py": {"attentions": 2, "attention": 1}, "tuner/two.py": {"gemm": 3}}
    assert [docs.partition(" names ")[0] for docs in allowed.grown(more)] == ["tuner/one.py"] * 2 + ["tuner/two.py"]
    assert allowed.idle({}) == [
        "tuner/one.py has no 'attentions' now, or fewer of them",
        "tuner/two.py has no 'gemm' now, or fewer of them",
        "nothing in tuner/vllm/ names a kind",
    ]
