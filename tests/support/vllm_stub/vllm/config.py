"""vLLM's setting for running steps in CUDA graphs.

Source: https://docs.vllm.ai/en/stable/api/vllm/config/compilation/.
"""

from __future__ import annotations

from enum import Enum


class CUDAGraphMode(Enum):
    NONE = 0
    PIECEWISE = 1
    FULL = 2
