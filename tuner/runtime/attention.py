"""Decode attention of a fetched artifact, with the projection behind it: a call takes arrays of any library.

    attention = tuner.runtime.load_attention("best.zip")
    y = attention(q, keys, values, lengths, pages, w)

All that is launched by one of these runs on one stream, since what the launches hand to each other is the artifact's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .arrays import library_of
from .artifact import Artifact, load_artifact
from .calls import Calls
from .native import RuntimeFailure

#: Of a product, what a call has no operand for.
_OPTIONS = ("bias", "gated", "residual", "row_scale", "norm", "rotary")


class Attention:
    """An artifact of one attention, alone or with one plain product behind it, loaded into the current context."""

    def __init__(self, artifact: Artifact) -> None:
        """Of that artifact.

        Raises:
            RuntimeFailure: it is of another workload.
        """
        self.artifact = artifact
        ops = artifact.manifest["workload"]["ops"]
        attentions = [op for op in ops if op.get("op") == "attention"]
        products = [op for op in ops if op.get("op") != "attention"]
        if "launch_order" in artifact.manifest:
            problem = (
                f"there are products in front of {attentions[0]['name']}, and a call has no place for their operands"
            )
            raise RuntimeFailure(-1, f"{problem}: load it with load_layer, which takes tensors by their names")
        if len(attentions) != 1 or len(products) > 1:
            problem = "the artifact is not of one attention with at most one product behind it"
            raise RuntimeFailure(-1, f"{problem}: load it with load_layer, which takes tensors by their names")
        #: The ops, as the manifest has them.
        self.op: dict[str, Any] = attentions[0]
        self.product: dict[str, Any] | None = products[0] if products else None
        if self.product is not None and (odd := _odd_options(self.product)):
            problem = f"{self.product['name']} has {', '.join(odd)}, for which a call has no operand"
            raise RuntimeFailure(-1, f"{problem}: load it with load_layer, which takes tensors by their names")
        self._calls = Calls(artifact)

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Of a tensor of the manifest; of a cache of pages as it was tuned."""
        return tuple(self.artifact.tensors[tensor]["shape"])

    @property
    def page_tokens(self) -> int:
        """Of a page of the cache; 0 where it is contiguous."""
        return int(self.op.get("page_tokens", 0))

    @property
    def output(self) -> str:
        """The tensor that leaves."""
        return str(self.product["name"] if self.product else self.op["name"])

    def __call__(
        self,
        q: Any,
        keys: Any,
        values: Any,
        lengths: Any,
        pages: Any = None,
        w: Any = None,
        *,
        out: Any = None,
        stream: int | None = None,
        no_pdl: bool = False,
    ) -> Any:
        """Attention of `q` [sequences * new tokens, heads * head_dim] over the caches, and its projection by `w`, on
        `stream`: the library's current one where it is not given. `pages` is the table of a paged cache. Nothing is
        waited for, and it may be captured in a graph. `no_pdl` as `Launches.enqueue` has it.

        Raises:
            RuntimeFailure: an operand is missing, or has another shape or element type, or the driver refuses.
        """
        library, name = library_of(q), self.op["name"]
        if library is None and (out is None or stream is None):
            raise RuntimeFailure(-1, "arrays of this library need `out`, an array for the result, and `stream`")
        y = library.empty(self.shape(self.output), q) if out is None and library is not None else out
        given = {
            self.op["source"]: q,
            f"{name}.keys": keys,
            f"{name}.values": values,
            f"{name}.lengths": lengths,
            f"{name}.pages": pages,
            f"{self.output}.w": w,
            self.output: y,
        }
        on = library.current_stream(q) if stream is None and library is not None else stream
        launches = self._calls.launches({tensor: array for tensor, array in given.items() if array is not None})
        launches.enqueue(on or 0, no_pdl=no_pdl)
        return y

    def refused(self) -> str:
        """What a launch found wrong first since `forget_refused`, as a sentence; empty where all was right. Waits for
        the device."""
        return self.artifact.refused()

    def forget_refused(self) -> None:
        """So that `refused` tells of what comes. Waits for the device."""
        self.artifact.forget_refused()

    def aborted(self) -> bool:
        """Whether a launch of the product has given up waiting; results since then are not right, until `reset`. Waits
        for the device."""
        return self.artifact.aborted()

    def reset(self) -> None:
        """After an abort, or a call whose launches were enqueued in part, as `Artifact.reset` has it."""
        self.artifact.reset()


def load_attention(path: Path | str, *, shares_sms: bool = False) -> Attention:
    """Reads the zip, or the folder, of a fetched artifact, and loads it; `shares_sms` as `load_artifact` has it.

    Raises:
        RuntimeFailure: it is no intact artifact, not of such a workload, or the driver refuses.
    """
    return Attention(load_artifact(path, shares_sms=shares_sms))


def _odd_options(product: dict[str, Any]) -> list[str]:
    odd = [name for name in _OPTIONS if product.get(name)]
    return odd + ([] if product["activation"] == "identity" else [product["activation"]])
