"""vLLM's state of a step during a forward pass; the stub returns `current`.

Source: https://docs.vllm.ai/en/stable/api/vllm/forward_context/.
"""

from __future__ import annotations

from typing import Any

current: Any = None


def get_forward_context() -> Any:
    assert current is not None
    return current
