"""A program: the launches of a downloaded artifact in order, whose tensors have the manifest's names.

    layer = tuner.runtime.load_layer("best.zip")
    y = layer({"residual": x, "residual.squares": squares, "qkv.w": w, "attention.keys": keys, ...})

All launches of one program run on one stream, since the data that they pass to each other belongs to the artifact.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.packs.recipes.parameters import most_rows
from tuner.runtime.binding.native import RuntimeFailure
from tuner.runtime.device.launch_list import Launches
from tuner.runtime.programs.artifact import Artifact, load_artifact
from tuner.runtime.tensors.arrays import library_of, named_view

#: Cached argument sets of launches: layers of a model, and alternating outputs.
NUM_CACHED = 256


class Program:
    """An artifact, loaded into the current context, whatever its ops are."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self._bound: dict[tuple[Any, ...], Launches] = {}
        #: The ops from the manifest.
        self.ops: list[dict[str, Any]] = artifact.manifest["workload"]["ops"]
        #: The tensor that a call returns: the output of the last op.
        self.output = str(self.ops[-1]["name"])
        #: All outputs.
        self.outputs = tuple(name for name, one in artifact.tensors.items() if one["role"] == "output")

    @property
    def tensors(self) -> dict[str, dict[str, Any]]:
        """The arguments of a call, by name: role, shape and element type. Those of an optional first kernel may be
        left out, and so may those that only the launches read and write."""
        return self.artifact.tensors

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Shape of a tensor of the manifest; for a paged cache as tuned, and for a chain with the maximum number of
        rows."""
        return tuple(self.tensors[tensor]["shape"])

    @property
    def rows(self) -> range:
        """The numbers of rows that the program supports."""
        most, (first, *_) = most_rows(self.artifact.manifest), self.shape(self.output)
        return range(1 if most else first, first + 1)

    def fits(self, forms: Mapping[str, tuple[tuple[int, ...], Any]], dtypes: Mapping[str, Any]) -> bool:
        """Whether tensors of these shapes and element types fit; `dtypes` by the manifest's names."""
        return self.artifact.fits(forms, dtypes)

    def __call__(self, tensors: Mapping[str, Any], *, stream: int | None = None, no_pdl: bool = False) -> Any:
        """The output of the last op, computed on `stream`: the library's current one by default. Missing outputs are
        allocated by the library of the other arrays. It does not wait, and it may be captured in a graph. `no_pdl` as
        in `Launches.enqueue`.

        Raises:
            RuntimeFailure: a tensor is missing, unknown, or has a different shape or element type, or the driver
            refuses.
        """
        given = {name: array for name, array in tensors.items() if array is not None}
        like = self._like_the_output(given)
        library = library_of(like)
        missing = [name for name in self.outputs if name not in given]
        if library is None and (stream is None or missing):
            wanted = ", ".join([*missing, *(["`stream`"] if stream is None else [])])
            raise RuntimeFailure(-1, f"{wanted} must be given with arrays of this library")
        if library is not None:
            shapes = self.artifact.shapes_beside(given)
            given |= {name: library.empty(shapes[name], like) for name in missing}
        on = library.current_stream(like) if stream is None and library is not None else stream
        self._launches(given).enqueue(on or 0, no_pdl=no_pdl)
        return given[self.output]

    def _launches(self, given: Mapping[str, Any]) -> Launches:
        """The packed launches for these arrays, cached by addresses and types."""
        key = tuple((name, named_view(name, array, has_lines=True)) for name, array in given.items())
        if (found := self._bound.get(key)) is None:
            if len(self._bound) >= NUM_CACHED:
                self._bound.clear()
            # The arrays of one call need not stay alive: a later call with the same addresses passes its own.
            found = self._bound[key] = self.artifact.bind(given).without_arrays()
        return found

    def _like_the_output(self, given: Mapping[str, Any]) -> Any:
        """An array of the output's element type."""
        known = self.tensors
        wanted = known[self.output]["dtype"]
        found = (array for name, array in given.items() if name in known and known[name]["dtype"] == wanted)
        if (like := next(found, None)) is None:
            raise RuntimeFailure(-1, f"there is no tensor {wanted}: pass {', '.join(sorted(known))}")
        return like

    def bind(self, tensors: Mapping[str, Any]) -> Launches:
        """The launches with these arrays, as in `Artifact.bind`."""
        return self.artifact.bind(tensors)

    def refused(self) -> str:
        """The first error that a launch found since `forget_refused`, as a sentence; empty if there was none. Waits
        for the device."""
        return self.artifact.refused()

    def forget_refused(self) -> None:
        """Resets `refused`. Waits for the device."""
        self.artifact.forget_refused()

    def aborted(self) -> bool:
        """Whether a launch has given up waiting; results since then are wrong, until `reset`. Waits for the device."""
        return self.artifact.aborted()

    def reset(self) -> None:
        """Same as `Artifact.reset`, for use after an abort or after a call that was only partly enqueued."""
        self.artifact.reset()


#: The type of a pack's layers and chains.
Layer = Program


def load_layer(path: Path | str, *, shares_sms: bool = False) -> Program:
    """Reads the zip or folder of a downloaded artifact, and loads it; `shares_sms` as in `load_artifact`.

    Raises:
        RuntimeFailure: it is not an intact artifact, or the driver refuses.
    """
    return Program(load_artifact(path, shares_sms=shares_sms))
