"""A stub of the part of vLLM's interface that examples/vllm_plugin.py uses; written from vLLM's documentation.

Source: https://docs.vllm.ai/en/stable/design/plugin_system/ and /contributing/model/registration/: a general plugin is
a function without arguments; `register_model(model_arch, model_cls)` takes a class, or ``<module>:<class>``.
"""

from __future__ import annotations

import importlib


class _Registry:
    def __init__(self) -> None:
        self.models: dict[str, type | str] = {"LlamaForCausalLM": "vllm.model_executor.models.llama:LlamaForCausalLM"}

    def get_supported_archs(self) -> set[str]:
        return set(self.models)

    def register_model(self, model_arch: str, model_cls: type | str) -> None:
        if isinstance(model_cls, str) and len(model_cls.split(":")) != 2:
            raise ValueError("give <module>:<class>")
        self.models[model_arch] = model_cls

    def load(self, model_arch: str) -> type:
        """As vLLM does when it makes a model."""
        found = self.models[model_arch]
        if isinstance(found, type):
            return found
        module, _, name = found.partition(":")
        loaded: type = getattr(importlib.import_module(module), name)
        return loaded


ModelRegistry = _Registry()
