"""An attention's schedule in sentences: what limits it, how tasks fill the GPU, and which axis would be better."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.support.attentions import alone, attention, space_with
from tests.support.between import between
from tests.support.cases import H200
from tests.support.lanes import one_in
from tests.support.presets import decoder_layer
from tuner.core.insight.explain import explain
from tuner.ops.attention.op import Lengths
from tuner.ops.attention.schedule import AttentionEngine
from tuner.search.guesses.seeds import first_guesses


def test_an_attention_alone_is_explained_by_bytes_tasks_and_its_forecast() -> None:
    workload = attention(sequences=16, kv_heads=8, head_dim=128, max_length=2048)
    sentences = explain(workload, H200, alone(num_stages=4, span_tokens=2048))
    text = " ".join(sentences)
    assert "of which the caches are 28.0" in text
    assert "attention has 128 of 2048 tokens, of which 128 are not empty" in text
    assert "the fullest reads 1.00 times the mean" in text
    assert re.search(r"Forecast: attention \d+\.\d us; \d+\.\d us with plain launches", text)
    assert sentences[-1].startswith("Next best: ")


def test_who_brings_keys_and_values_is_told() -> None:
    workload = attention()
    found = [" ".join(explain(workload, H200, alone(engine=engine))) for engine in AttentionEngine]
    assert "in 6 stages, loaded by the copy engine" in found[0]
    assert "in 6 stages, loaded by cp.async of two warps" in found[1]


def test_ragged_lengths_show_as_empty_tasks_and_uneven_queues() -> None:
    workload = attention(sequences=16, kv_heads=8, head_dim=128, max_length=4096, lengths=Lengths.UNIFORM)
    text = " ".join(explain(workload, H200, alone(num_stages=4, span_tokens=512)))
    tasks, live = map(int, re.findall(r"has (\d+) of 512 tokens, of which (\d+)", text)[0])
    assert live < tasks == 16 * 8 * 8
    assert float(re.findall(r"the fullest reads (\d\.\d+)", text)[0]) > 1.02
    assert "8 spans of a context are combined in memory" in text


@pytest.mark.slow
def test_a_pair_names_both_launches() -> None:
    workload = attention(d_out=512)
    text = " ".join(explain(workload, H200, next(iter(first_guesses(space_with(workload), 0)))))
    assert re.search(r"Forecast: attention \d+\.\d us, o_proj \d+\.\d us;", text)


@pytest.mark.soak
def test_a_layer_is_explained_by_its_attention_and_by_the_boundaries_of_the_chain_behind_it() -> None:
    workload = decoder_layer("llama3-8b", sequences=1, max_length=512)
    text = " ".join(explain(workload, H200, next(iter(first_guesses(space_with(workload), 0)))))
    launches = ", ".join(rf"{op.name} \d+\.\d us" for op in (*workload.launch_ops, *workload.tile_ops))
    assert re.search(rf"Forecast: {launches}; \d+\.\d us with plain launches", text)
    assert "Waves: gate_up has" in text
    assert "Op: qkv reads down, norms by down, rotates queries and keys, writes keys and values to a cache" in text
    assert "Cuts: of 8 ways to launch it" in text


@pytest.mark.slow
@pytest.mark.parametrize("num_behind", one_in(3, [0, 1, 3]))
def test_products_on_both_sides_are_told_by_their_launches(num_behind: int) -> None:
    workload = between(num_behind=num_behind)
    schedule = next(iter(first_guesses(space_with(workload), 0)))
    text = "\n".join(explain(workload, H200, schedule))
    if num_behind == 3:
        in_runs = schedule.but(ordering=replace(schedule.ordering, run_starts=(1, 3)))
        assert explain(workload, H200, in_runs)[1:] == text.splitlines()[1:], "whatever the runs it was launched in"
    names = ["qkv", "attention", "o_proj", "gate_up", "down"][: 2 + num_behind]
    forecast = next(line for line in text.splitlines() if line.startswith("Forecast: qkv "))
    assert [part.split()[0] for part in forecast.removeprefix("Forecast: ").split(";")[0].split(", ")] == names
    assert "Policy: the order" not in text
    assert ("Op: qkv reads inputs alone, rotates queries and keys" in text) == (num_behind > 0)
    assert ("Op: o_proj reads attention" in text) == (num_behind > 0)
    assert ("Forecast of qkv: " in text) == (num_behind > 0)
    assert ("Forecast of o_proj and gate_up and down: " in text) == (num_behind == 3)
    assert ("Cuts: of 4 ways" in text) == (num_behind == 3)
    assert ("[qkv] [attention] [o_proj" in text) == (num_behind == 3)
    assert "Next best: " in text
