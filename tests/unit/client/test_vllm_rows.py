"""The rows of `--m vllm` are those that vLLM captures; `tests/vllm` compares with vLLM itself."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tuner.client import ExitCode
from tuner.client.cli import main
from tuner.client.options.model_options import name_of
from tuner.client.options.vllm_rows import captured_rows


def test_without_flags_they_go_to_512_in_three_steps() -> None:
    rows = captured_rows()
    assert rows[:5] == (1, 2, 4, 8, 16)
    assert [two - one for one, two in pairwise(rows[3:])] == [8] * 31 + [16] * 16
    assert (len(rows), rows[-1]) == (51, 512)


@pytest.mark.parametrize(
    ("flags", "last", "number"),
    [
        ({"max_num_seqs": 1}, 2, 2),
        ({"max_num_seqs": 64}, 128, 19),
        ({"max_num_seqs": 64, "speculative_tokens": 1}, 256, 35),
        ({"max_num_seqs": 64, "speculative_tokens": 7}, 512, 51),
        ({"max_num_batched_tokens": 100}, 100, 16),
        ({"max_num_batched_tokens": 3}, 3, 3),
    ],
)
def test_they_follow_vllms_flags(flags: dict[str, int], last: int, number: int) -> None:
    rows = captured_rows(**flags)
    assert (rows[-1], len(rows)) == (last, number)
    assert list(rows) == sorted(set(rows))


def test_vllms_flags_beside_rows_are_refused_by_name(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    found = CliRunner().invoke(main, ["tune-model", str(config), "-o", "x", "--m", "1,2", "--max-num-seqs", "4"])
    assert found.exit_code == ExitCode.USAGE
    assert "--max-num-seqs: only allowed with --m vllm" in found.stderr


@pytest.mark.parametrize(
    ("name", "config", "called"),
    [
        ("llama_3_8b.json", {}, "llama_3_8b"),
        ("Meta-Llama-3-8B/config.json", {}, "Meta-Llama-3-8B"),
        ("x/config.json", {"_name_or_path": "meta-llama/Meta-Llama-3-8B"}, "Meta-Llama-3-8B"),
        ("x/config.json", {"_name_or_path": ""}, "x"),
        ("x/config.json", {"_name_or_path": 3}, "x"),
        ("x/config.json", {"_name_or_path": "a" * 80}, "a" * 64),
        ("x/config.json", {"_name_or_path": "a\nb"}, "ab"),
    ],
)
def test_a_model_is_called_as_its_config_or_its_file_says(
    tmp_path: Path, name: str, config: dict[str, Any], called: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))
    assert name_of(path) == called
