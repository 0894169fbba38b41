"""Decode attention from a downloaded artifact, with the projection after it: a call accepts arrays of any library.

attention = tuner.runtime.load_attention("best.zip")
y = attention(q, keys, values, lengths, pages, w)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tuner.errors import InvalidInput
from tuner.packs.launched_shape import LaunchedShape, launched_shape_of
from tuner.runtime.binding.native import RuntimeFailure
from tuner.runtime.programs.artifact import Artifact, load_artifact
from tuner.runtime.programs.program import Program


class Attention(Program):
    """One attention, alone or with one product after it: a call takes its operands one by one."""

    def __init__(self, artifact: Artifact) -> None:
        """Binds `artifact`.

        Raises:
            RuntimeFailure: it has a different workload.
        """
        super().__init__(artifact)
        workload = artifact.manifest["workload"]
        shape = next(filter(None, map(launched_shape_of, workload["ops"])), LaunchedShape)
        try:
            shape.of_workload(workload)
        except InvalidInput as error:
            problem = (
                f"the artifact {error.problem}, but a call has operands only for an attention with a plain product"
            )
            remedy = "load it with load_layer, which takes tensors by name"
            raise RuntimeFailure(-1, f"{problem} after it: {remedy}") from error
        self.op, self.product = self.ops[0], self.ops[1] if len(self.ops) > 1 else None

    @property
    def page_tokens(self) -> int:
        """Tokens per page of the cache; 0 if it is contiguous."""
        return int(self.op.get("page_tokens", 0))

    def __call__(  # type: ignore[override]
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
        """Attention of `q` [sequences * new tokens, heads * head_dim] over the caches, and its projection with `w`, on
        `stream`: the library's current one by default. `pages` is the table of a paged cache. It does not wait, and it
        may be captured in a graph. `no_pdl` as in `Launches.enqueue`.

        Raises:
            RuntimeFailure: an operand is missing, or has a different shape or element type, or the driver refuses.
        """
        name = self.op["name"]
        given = {
            self.op["source"]: q,
            f"{name}.keys": keys,
            f"{name}.values": values,
            f"{name}.lengths": lengths,
            f"{name}.pages": pages,
            f"{self.output}.w": w,
            self.output: out,
        }
        return super().__call__(given, stream=stream, no_pdl=no_pdl)


def load_attention(path: Path | str, *, shares_sms: bool = False) -> Attention:
    """Reads the zip or folder of a downloaded artifact, and loads it; `shares_sms` as in `load_artifact`.

    Raises:
        RuntimeFailure: it is not an intact artifact, does not have such a workload, or the driver refuses.
    """
    return Attention(load_artifact(path, shares_sms=shares_sms))
