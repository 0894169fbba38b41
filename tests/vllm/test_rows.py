"""The rows of `--m vllm` are those that vLLM itself would capture."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tuner.client.options.vllm_rows import captured_rows

vllm = pytest.importorskip("vllm")
#: Warnings of PyTorch and vLLM, which are imported here.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("seqs", [1, 3, 4, 64, 127, 128, 200, 256, 1024])
@pytest.mark.parametrize("drafts", [0, 1, 5])
@pytest.mark.parametrize("tokens", [3, 100, 128, 2048, 8192])
def test_they_are_vllms_own(seqs: int, drafts: int, tokens: int) -> None:
    from vllm.config import CUDAGraphMode, VllmConfig

    compilation = SimpleNamespace(
        cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE,
        max_cudagraph_capture_size=None,
        cudagraph_capture_sizes=None,
        pass_config=SimpleNamespace(enable_sp=False),
        post_init_cudagraph_sizes=lambda: None,
    )
    asked = SimpleNamespace(
        model_config=SimpleNamespace(enforce_eager=False),
        compilation_config=compilation,
        scheduler_config=SimpleNamespace(max_num_seqs=seqs, max_num_batched_tokens=tokens),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        num_speculative_tokens=drafts,
        performance_mode="balanced",
    )
    VllmConfig._set_cudagraph_sizes(asked)
    rows = captured_rows(seqs, speculative_tokens=drafts, max_num_batched_tokens=tokens)
    assert list(rows) == compilation.cudagraph_capture_sizes
