"""A pack says how weights are stored: who asks for elements gets no kernel of codes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.converted import TILINGS, pair
from tests.support.packs import make
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.errors import InvalidInput
from tuner.ops.gemm.quantised import Scheme
from tuner.packs.shapes import shape_of


def without(workload: Workload) -> Workload:
    """The same of elements."""
    return replace(workload, ops=tuple(replace(op, weights=None) for op in workload.tile_ops))


@pytest.mark.parametrize("scheme", [Scheme.W8A16, Scheme.INT4])
def test_a_manifest_has_weights_as_they_are_stored(scheme: Scheme) -> None:
    name, workload = "int4" if scheme is Scheme.INT4 else "e4m3", pair(scheme)
    manifest = make(tiling=TILINGS[name][1], workload=workload).kernel.manifest
    tensors = {one["name"]: one for one in manifest["tensors"]}
    assert scheme.row.weights is not None
    for op in workload.tile_ops:
        found = tensors[f"{op.name}.w"]
        assert (found["dtype"], found["shape"]) == (
            "uint8",
            [op.weight_rows, scheme.row.weights.row.row_bytes(op.k)],
        )
    assert shape_of(manifest["workload"]) != shape_of(without(workload).to_json())


def test_an_ffn_of_a_pack_has_no_place_for_them() -> None:
    workload = replace(pair(Scheme.INT4), kind=WorkloadKind.FFN)
    with pytest.raises(InvalidInput, match="has weights, which an FFN in a pack cannot have there"):
        shape_of(workload.to_json())
