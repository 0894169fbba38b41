"""A damaged file is refused in one sentence with its name, the fault, and what would be right."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tuner.client.cli import main
from tuner.client.connection.credentials import credentials_path
from tuner.client.models.models import ffn_blocks
from tuner.client.options.model_options import read_config

CONFIGS = Path(__file__).parent / "configs"

CONTENTS = {
    b"": "is not valid JSON but empty",
    b'{"a": 1,\n': "is not valid JSON from line 2, column 1",
    b'{"b": {"a": 1, "c": 2, "a": 1}}': "has 'a' twice in one object",
    b"\xff\xfe": "is not UTF-8 text",
    b"[" * 10**5: "is nested too deeply",
}


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["--url", "http://127.0.0.1:1", *arguments])
    assert isinstance(result.exception, SystemExit), result.exception
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("tune-model FILE -o x", "pass the config.json of a model"),
        ("import FILE", "pass a file written by tuner-client export --format t4"),
        ("submit --chain FILE", 'use an object like {"m": 16, "ops": [...]}'),
    ],
)
def test_a_file_that_is_no_json_is_named(tmp_path: Path, command: str, remedy: str, content: bytes) -> None:
    file = tmp_path / "file.json"
    file.write_bytes(content)
    expected = f"Error: {file}: {CONTENTS[content]}; {remedy}"
    assert refusal(*command.replace("FILE", str(file)).split()) == expected


def test_a_config_of_the_wrong_form_is_named_with_its_field(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    sizes = '"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2'
    for content, words in (
        ("[]", "not a JSON object"),
        (f'{{{sizes}, "torch_dtype": []}}', "torch_dtype: is []"),
        (f'{{{sizes}, "dtype": "float8"}}', "dtype: is 'float8'"),
        (f'{{{sizes}, "torch_dtype": "float16", "hidden_act": [5]}}', "hidden_act: is [5]"),
    ):
        file.write_text(content)
        assert refusal("tune-model", str(file), "-o", "x").startswith(f"Error: {file}: {words}")


@pytest.mark.parametrize(
    ("name", "contents", "words"),
    [
        (
            "hf_quant_config.json",
            {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
            "e4m3 weights",
        ),
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": False, "sym": True}, "int4_g128 weights"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "GEMM"}, "int4_g128_zp"),
    ],
)
def test_a_config_whose_quantisation_is_in_another_file_is_refused(
    tmp_path: Path, name: str, contents: dict[str, Any], words: str
) -> None:
    """Kernels of 16 bits would be of no use. With the contents in the config, as asked, the formats are known."""
    config = json.loads((CONFIGS / "llama_3_8b.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert read_config(path) == config
    (tmp_path / name).write_text(json.dumps(contents))
    with pytest.raises(click.UsageError, match=f"has no quantization_config, but {name} beside it has one") as refused:
        read_config(path)
    method = {"quant_method": found[1]} if (found := re.search("quant_method ([a-z]+)", str(refused.value))) else {}
    path.write_text(json.dumps(config | {"quantization_config": contents | method}))
    [block] = ffn_blocks(read_config(path))
    assert words in str(block)


def test_ranks_that_do_not_divide_a_config_are_named_as_the_option_is(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}')
    said = refusal("tune-model", str(file), "-o", "x", "--tp", "3")
    assert said.startswith(f"Error: --tp, with {file}: is 3, but intermediate_size 512 is not a multiple of it; use")


def test_damaged_credentials_and_packs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.tunerpack"
    file.write_bytes(b"none")
    assert refusal("verify", str(file)) == f"tuner-client: {file} is not an intact pack; fetch or build the pack again"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    credentials_path().parent.mkdir()
    credentials_path().write_text("{")
    said = f"{credentials_path()}: is not valid JSON from line 1, column 2; fix it, or delete it and log in again"
    assert refusal("jobs") == f"tuner-client: {said}"
