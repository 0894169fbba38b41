"""The load format `tuner`: another format's loader runs first; then the pack's kernels replace MLPs, and whole layers
if supported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm import envs
from vllm.model_executor.model_loader import get_model_loader, register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from tuner.errors import InvalidInput

from .decode import install
from .layers import Programs, fold_norms, programs_of
from .log import log
from .mlp import Found, PackedMlp, found_in, replace_mlps
from .norms.replaced import PackedNorm, replace_norms
from .pack import VARIABLE, digest, pack_path
from .quantised import mlps as quantised
from .ranges import code_digest, split

#: The value of `--load-format`.
FORMAT = "tuner"
#: Key of the loader's extra config: the format in which the weights are loaded.
INNER_FORMAT = "load_format"
#: Another key: if false, vLLM computes the layers, and kernels only the MLPs.
LAYERS = "layers"
#: Another key: if false, vLLM computes the norms around replaced MLPs.
NORMS = "norms"
#: Another key: if false, steps with more rows than the pack's last kernel call our operators, too.
RANGES = "ranges"


class PackedLoader(BaseModelLoader):  # type: ignore[misc]
    """Loads with the inner format, then replaces MLPs and layers."""

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        extra = dict(load_config.model_loader_extra_config)
        inner_format = extra.pop(INNER_FORMAT, "auto")
        self._has_layers, self._has_norms, self._has_ranges = (_flag(extra, key) for key in (LAYERS, NORMS, RANGES))
        if inner_format == FORMAT:
            name = f"model_loader_extra_config.{INNER_FORMAT}"
            raise InvalidInput(
                name, f"is {FORMAT!r}, which is this plugin's own", "use one of vLLM's formats, or leave it out"
            )
        inner = replace(load_config, load_format=inner_format, model_loader_extra_config=extra)
        self.inner = get_model_loader(inner)
        #: The MLPs of the latest load.
        self.mlps: list[Found] = []
        self._programs: Mapping[int, Programs] = {}
        self._quantised: list[quantised.Laid] = []
        self._vllm_config: Any = None

    def __getattr__(self, name: str) -> Any:
        """Attributes that only some loaders have, such as the list of all weights with which vLLM reloads them."""
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def download_model(self, model_config: Any) -> None:
        """Downloads the model with the loader of the inner format."""
        self.inner.download_model(model_config)

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Loads the weights with the loader of the inner format."""
        self.inner.load_weights(model, model_config)
        self.mlps = found_in(model)
        if self._vllm_config is not None and (named := pack_path()) is not None:
            self._quantised = quantised.read(model, model_config, named)
        if self._has_layers and self._vllm_config is not None and (path := pack_path()) is not None:
            self._programs = programs_of(path, model, self._vllm_config)
            if self._programs:
                fold_norms(model)

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        """vLLM's model, with the pack's kernels for supported parts.

        Raises:
            InvalidInput: TUNER_PACK is not a file.
        """
        path = pack_path()
        reason = "" if path is None else self._reason_against_all(vllm_config, model_config)
        if reason:
            log.warning("tuner: all MLPs keep vLLM's implementation: %s", reason)
        if path is None:
            log.info("tuner: %s is not set, so vLLM computes everything", VARIABLE)
        if path is None or reason:
            return self.inner.load_model(vllm_config, model_config, prefix)
        # The compile cache must distinguish code that calls our operator from the model's original code.
        vllm_config.additional_config["tuner_pack"] = digest(path) + " and norms" * self._has_norms
        if self._has_ranges:
            vllm_config.additional_config["tuner_ranges"] = code_digest()
        self._vllm_config = vllm_config
        model = super().load_model(vllm_config, model_config, prefix)
        replace_mlps(model, self.mlps, path, laid=[one.name for one in self._quantised])
        quantised.install(model, self._quantised)
        if self._has_norms:
            # Drafts may be made from sums between layers, which must then have the model's dtype.
            count = replace_norms(model, keeps_sums=vllm_config.speculative_config is None)
            log.info("tuner: %d norms overlap with the launches of an MLP", count)
        if self._has_ranges and any(isinstance(one, PackedMlp | PackedNorm) for one in model.modules()):
            split(getattr(vllm_config, "compilation_config", None), path)
        if self._programs:
            install(model, self._programs)
        return model

    def _reason_against_all(self, vllm_config: Any, model_config: Any) -> str:
        if vllm_config.lora_config is not None:
            return "adapters (LoRA) change each product separately"
        if getattr(model_config, "enable_sleep_mode", False):
            return "sleep mode may discard the kernels' workspaces"
        if getattr(vllm_config.parallel_config, "use_ubatching", False):
            return "two micro-batches at once (DBO) would share the kernels' workspaces"
        if not isinstance(vllm_config.additional_config, dict):
            return "additional_config is not a dict, so the pack cannot be part of the key of vLLM's compile cache"
        if envs.VLLM_BATCH_INVARIANT:
            return (
                "VLLM_BATCH_INVARIANT requires bits that do not depend on other rows, but the kernel "
                "changes with the number of rows"
            )
        if type(self.inner).load_model is not BaseModelLoader.load_model:
            return f"load format {self.inner.load_config.load_format!r} builds the model itself"
        return ""


def _flag(extra: dict[str, Any], key: str) -> bool:
    """Takes a setting out of the extra config, by default true.

    Raises:
        InvalidInput: it is neither true nor false.
    """
    found = extra.pop(key, True)
    if not isinstance(found, bool):
        raise InvalidInput(f"model_loader_extra_config.{key}", f"is {found!r}", "use true or false, or leave it out")
    return found


def register_loader() -> None:
    """Registers the format with vLLM in this process."""
    register_model_loader(FORMAT)(PackedLoader)
