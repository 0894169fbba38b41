"""The steps of every loader: create the model, load its weights, convert their layout.

Source: https://docs.vllm.ai/en/stable/api/vllm/model_executor/model_loader/base_loader/.
"""

from __future__ import annotations

from typing import Any

import torch


class BaseModelLoader:
    def __init__(self, load_config: Any) -> None:
        self.load_config = load_config

    def download_model(self, model_config: Any) -> None:
        pass

    def load_weights(self, model: Any, model_config: Any) -> None:
        raise NotImplementedError

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        model = model_config.architecture(vllm_config=vllm_config, prefix=prefix)
        self.load_weights(model, model_config)
        for module in model.modules():
            if hasattr(module, "laid_out"):  # on a CPU, vLLM keeps its own copy and drops the weights
                module.laid_out = module.weight.detach().clone()
                module.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)
        return model.eval()
