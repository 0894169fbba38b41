"""What the whole-layer examples check of a decoder: logits of generated tokens against transformers', and its time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from llama_decode import CACHE, Decoder, rel_error

NUM_TOKENS = 64
#: Maximum over these tokens, for 32 layers in bf16: both results are about 0.06 away from a model in fp32, and round
#: independently.
LAYERS_BAR = 0.1
NUM_TURNS = 25


class Steps(Protocol):
    """A decoder that reads one token of each sequence at a time."""

    lengths: torch.Tensor
    tokens: torch.Tensor


def caches_of(decoder: Decoder) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Copies of each layer's current keys and values."""
    return [(layer.keys.clone(), layer.values.clone()) for layer in decoder.cache.layers]


def generate(decoder: Decoder, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs transformers' model for `num_tokens` tokens, each the most likely one after the previous one. Returns the
    tokens that it read and the logits, each [num_tokens, sequences, ...]. The cache grows by `num_tokens` tokens."""
    tokens, logits, positions = decoder.tokens, [], decoder.positions
    read = []
    for step in range(num_tokens):
        found = decoder.model(
            input_ids=tokens, position_ids=positions + step, use_cache=True, **{CACHE: decoder.cache}
        ).logits
        read.append(tokens[:, 0])
        logits.append(found[:, 0])
        tokens = found.argmax(dim=-1)
    return torch.stack(read), torch.stack(logits)


def retell(tuned: Steps, read: torch.Tensor, begin: int, replay: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The logits of a tuned decoder that reads the same tokens, starting from a context of `begin` tokens."""
    tuned.lengths.fill_(begin)
    logits = []
    for tokens in read:
        tuned.tokens.copy_(tokens)
        logits.append(replay().clone())
    return torch.stack(logits)


def worst_error(found: Iterable[torch.Tensor], wanted: Iterable[torch.Tensor]) -> float:
    """The maximum error over all tokens."""
    return max(rel_error(one, other) for one, other in zip(found, wanted, strict=True))


def milliseconds(graph: torch.cuda.CUDAGraph, tuned: Steps, begin: int) -> float:
    """The median time of several replays at a context of `begin` tokens. An untimed replay runs before each."""
    times = []
    for _ in range(NUM_TURNS):
        tuned.lengths.fill_(begin)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def judged(what: str, error: float, bar: float, refusals: Sequence[str]) -> int:
    """Prints the result; returns 1 if something was refused, or the error exceeds the bar."""
    problems = [one for one in refusals if one] + ([] if error <= bar else ["they do not agree"])
    print(f"{what}: {error:.4f} from transformers' (at most {bar}) {'; '.join(problems)}")
    return 1 if problems else 0
