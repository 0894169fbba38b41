"""Load formats by name, as vLLM keeps them.

Source: https://docs.vllm.ai/en/stable/api/vllm/model_executor/model_loader/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from vllm.model_executor.model_loader.base_loader import BaseModelLoader

_LOADERS: dict[str, type[BaseModelLoader]] = {}


@dataclass
class LoadConfig:
    load_format: str = "auto"
    model_loader_extra_config: dict[str, Any] = field(default_factory=dict)


def register_model_loader(load_format: str) -> Callable[[type[BaseModelLoader]], type[BaseModelLoader]]:
    def keep(loader: type[BaseModelLoader]) -> type[BaseModelLoader]:
        assert issubclass(loader, BaseModelLoader)
        _LOADERS[load_format] = loader
        return loader

    return keep


def get_model_loader(load_config: LoadConfig) -> BaseModelLoader:
    if load_config.load_format not in _LOADERS:
        raise ValueError(f"Load format `{load_config.load_format}` is not supported")
    return _LOADERS[load_config.load_format](load_config)


@register_model_loader("auto")
class DefaultModelLoader(BaseModelLoader):
    """Draws weights; those named in "weights" of the `extra config` are loaded instead."""

    def load_weights(self, model: Any, model_config: Any) -> None:
        given = self.load_config.model_loader_extra_config.get("weights", {})
        for name, parameter in model.named_parameters():
            if name in given:
                parameter.data = given[name].clone()

    def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
        yield from self.load_config.model_loader_extra_config.get("weights", {}).items()


@register_model_loader("whole")
class WholeModelLoader(DefaultModelLoader):
    """A format whose loader creates the model by itself."""

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        return super().load_model(vllm_config, model_config, prefix)
