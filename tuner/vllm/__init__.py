"""A pack's kernels inside vLLM: `vllm serve MODEL --load-format tuner`, with TUNER_PACK.

The wheel names `register` as an entry point of the group `vllm.general_plugins`, so nothing needs to be installed by
hand. `docs/vllm.md` says what is replaced, what stays vLLM's own, and how it is checked.
"""

from __future__ import annotations


def register() -> None:
    """Gives vLLM the load format `tuner`. vLLM calls this in each of its processes, possibly several times. With
    another load format, nothing changes.
    """
    from .log import log

    try:
        from .loader import register_loader
    except ImportError as error:
        # The plugin comes with the wheel, and must not break programs without vLLM.
        log.warning(
            "tuner: the load format `tuner` is not available, since this vLLM has a different interface: %s", error
        )
        return
    register_loader()
