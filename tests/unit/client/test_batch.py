"""Many jobs as one batch: its progress, its remaining time, and how row counts are written."""

from __future__ import annotations

import io
import re
from itertools import pairwise
from typing import Any, cast

import click
import pytest
from rich.console import Console

from tuner.client import Client
from tuner.client.connection.addresses import is_batch
from tuner.client.errors import TimedOut, Unreachable
from tuner.client.follow import batch as batch_module
from tuner.client.follow.batch import follow, ladder_shapes, ladder_tables, line
from tuner.client.options.row_counts import row_counts, with_between
from tuner.client.options.vllm_rows import captured_rows
from tuner.packs.shapes import Shape


def batch(state: str, done: int, **by_state: int) -> dict[str, Any]:
    return {
        "id": "batch-1",
        "state": state,
        "num_trials": done,
        "num_planned": 40,
        "num_jobs": sum(by_state.values()),
        "jobs_by_state": by_state,
        "eta_s": 12.4 if done else None,
        "card_share": 0.84 if done else None,
        "simulated": True,
    }


class Answers:
    """Answers like a service whose batch progresses with each request."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)

    def batch(self, batch_id: str) -> dict[str, Any]:
        assert batch_id == "batch-1"
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_a_batch_says_in_one_line_how_far_it_is() -> None:
    assert line(batch("queued", 0, queued=2)) == "0/40 trials; 0 of 2 jobs (simulated)"
    found = batch("searching", 9, queued=1, succeeded=2, failed=1)
    assert line(found) == "9/40 trials, about 12 s left, card busy 84 %; 3 of 4 jobs (simulated)"
    assert line({**found, "state": "succeeded"}) == "9 trials; 3 of 4 jobs (simulated)"
    assert (
        line({**found, "num_paused": 1})
        == "9/40 trials, about 12 s left, card busy 84 %; 3 of 4 jobs, 1 paused (simulated)"
    )
    of_before = {name: value for name, value in found.items() if name != "card_share"}
    assert line(of_before) == "9/40 trials, about 12 s left; 3 of 4 jobs (simulated)"


def test_a_narrow_terminal_shows_how_long_it_takes_and_how_busy_the_card_is() -> None:
    file = io.StringIO()
    console = Console(file=file, width=50, force_terminal=True)
    first, last = batch("searching", 9, queued=1, succeeded=3), batch("succeeded", 40, succeeded=4)
    assert follow(Answers(first, last), first, console) == last
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    for words in ("about 12 s left", "card busy 84", "4 of 4 jobs", "(simulated)"):
        assert words in " ".join(shown.split()), words


@pytest.mark.parametrize(
    ("count", "least", "words"),
    [
        (0, 0, "no tuner kernel: the library runs everywhere"),
        (1, 1, "1 kernel (fused pdl), the minimum; the library runs for more rows"),
        (2, 1, "2 kernels (fused pdl, fused pdl), and at least 1 are needed; the library runs for more rows"),
    ],
)
def test_a_ladder_says_how_many_kernels_it_has_and_how_many_it_takes(count: int, least: int, words: str) -> None:
    kernels = [{"candidate": {"plan_kind": "fused_pdl", "text": "a schedule"}}] * count
    ladder = {"workload": "a pair", "rungs": [], "kernels": kernels, "least_kernels": least, "reason": ""}
    (table,) = ladder_tables({"ladders": [ladder], "target": "h200", "simulated": False})
    assert table.caption == words


def test_a_batch_is_followed_to_its_end_with_a_line_for_each_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.client.follow.batch._ASK_EVERY_S", 0.0)
    first, last = batch("queued", 0, queued=2), batch("succeeded", 40, succeeded=2)
    client: Any = Answers(first, batch("searching", 4, searching=2), batch("searching", 5, searching=2), last)
    shown = io.StringIO()
    assert follow(client, first, Console(file=shown, width=200)) == last
    assert [one.partition(":")[0] for one in shown.getvalue().splitlines()] == ["queued", "searching", "succeeded"]


def test_nobody_waits_for_a_batch_longer_than_he_said() -> None:
    first = batch("queued", 0, queued=2)
    client: Any = Answers(first)
    with pytest.raises(TimedOut, match="batch-1 did not end"):
        follow(client, first, Console(file=io.StringIO()), timeout_s=0.0)


def test_each_shape_has_all_rows_and_the_shape_of_most_layers_comes_first() -> None:
    few, many = (Shape(dtype="fp16", activation="silu", d_in=64, d_hidden=n, d_out=64, gated=True) for n in (64, 128))
    shapes = ladder_shapes({few: 2, many: 30}, (1, 8))
    assert [(shape["d_hidden"], shape["m"]) for shape in shapes] == [(128, [1, 8]), (64, [1, 8])]
    assert {"gated", "dtype", "activation"} <= shapes[0].keys()


def test_an_id_says_whether_it_is_a_batchs() -> None:
    assert is_batch("batch-0123456789ab")
    assert not is_batch("job-0123456789ab")


def read(value: str | None) -> int | tuple[int, ...] | None:
    return row_counts(click.Context(click.Command("x")), click.Option(["--m"]), value)


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        (None, None),
        ("16", 16),
        ("4,1,4", (1, 4)),
        ("8..256", (8, 16, 32, 64, 128, 256)),
        ("1,2,4,8..20", (1, 2, 4, 8, 16, 20)),
        ("7..7", 7),
    ],
)
def test_rows_are_spelled_one_by_one_or_by_their_ends(value: str | None, rows: int | tuple[int, ...] | None) -> None:
    assert read(value) == rows


@pytest.mark.parametrize(
    ("rows", "tuned"),
    [
        ((1, 8, 32), (1, 2, 4, 8, 16, 32)),
        ((1, 3, 7), (1, 3, 7)),  # kernels for 3 and 7 rows serve 2 rows, and 4 or more
        ((1, 5), (1, 2, 5)),
        ((100,), (100,)),
        (captured_rows(), captured_rows()),
    ],
)
def test_between_rows_those_are_measured_that_no_kernel_would_serve(
    rows: tuple[int, ...], tuned: tuple[int, ...]
) -> None:
    assert with_between(rows) == tuned
    pairs = pairwise(served for m in tuned for served in (m // 2 + 1, m))
    assert all(begin <= end + 1 for end, begin in list(pairs)[1::2]), "rows in between that none serves"


@pytest.mark.parametrize(
    "value", ["", "0", "1,,2", "-4", "8..4", "1..2..3", "a", "1.5", "9" * 5000, "1.." + "9" * 5000]
)
def test_rows_that_are_none_are_refused(value: str) -> None:
    with pytest.raises(click.BadParameter, match="not a list of rows") as refused:
        read(value)
    assert len(refused.value.message) < 200


def test_a_batch_is_watched_through_a_restart_of_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([{"state": "searching"}, None, None, {"state": "succeeded"}])

    class Restarting:
        def batch(self, batch_id: str) -> dict[str, Any]:
            if (answer := next(answers)) is None:
                raise Unreachable("it does not answer")
            return {"id": batch_id, **answer}

    monkeypatch.setattr(batch_module, "_ASK_EVERY_S", 0.0)
    updates = batch_module._updates(cast(Client, Restarting()), {"id": "batch-1", "state": "queued"}, None)
    assert [one["state"] for one in updates] == ["searching", "succeeded"]
    answers = iter([None, None])
    monkeypatch.setattr(batch_module, "PATIENCE_S", 0.0)
    with pytest.raises(Unreachable):
        list(batch_module._updates(cast(Client, Restarting()), {"id": "batch-1", "state": "queued"}, None))
