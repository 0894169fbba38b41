"""The numbers of rows for which vLLM captures graphs, from its flags.

Source: `VllmConfig._set_cudagraph_sizes` of vLLM 0.26. A decoding step uses the smallest captured number of rows that
is large enough; above the largest one it runs without a graph.
"""

from __future__ import annotations

#: The version with this list.
VLLM_VERSION = "0.26"
#: vLLM's own defaults for a server on a GPU with at least 70 GB.
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 1024, 8192
#: The maximum rows of a graph.
_MOST = 512
#: From this number of rows on, the step size is larger.
_WIDE = 256


def captured_rows(
    max_num_seqs: int = MAX_NUM_SEQS,
    *,
    speculative_tokens: int = 0,
    max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS,
) -> tuple[int, ...]:
    """1, 2, 4, then multiples of 8 below 256 and multiples of 16 above, up to twice the tokens of a decoding step, and
    at most 512.

    Args:
        max_num_seqs: sequences per step, >= 1.
        speculative_tokens: tokens per sequence that a draft model proposes.
        max_num_batched_tokens: tokens per step; added to the list if it is within its range.
    """
    most = min(2 * max_num_seqs * (1 + speculative_tokens), _MOST, max_num_batched_tokens)
    found = {m for m in (1, 2, 4, *range(8, _WIDE, 8), *range(_WIDE, most + 1, 16)) if m <= most}
    return tuple(sorted(found | ({max_num_batched_tokens} if max_num_batched_tokens <= most else set())))
