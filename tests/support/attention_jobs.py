"""Attentions on a GPU: a complete job, and the library without PyTorch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tuner.client import Client
from tuner.demo import running_server

#: The limits of the search.
BUDGET = {"trials": 24, "seconds": 150}


@contextmanager
def without_torch() -> Iterator[None]:
    """Behaves as if PyTorch were not installed."""
    find_spec = importlib.util.find_spec

    def others(name: str, package: str | None = None) -> Any:
        return None if name == "torch" else find_spec(name, package)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", others)
        yield


def read_late(one: Any, tensor: str, kept: Any) -> None:
    """Plants a fault in an op on the GPU: each launch reads `tensor` as it was at the previous launch, stored in
    `kept`."""
    right, launch = one.address_of, one.launch

    def late(ops: Any, stream: int) -> None:
        from cupy.cuda.runtime import memcpyAsync, memcpyDeviceToDevice

        launch(ops, stream)
        memcpyAsync(kept.data.ptr, right(tensor, ops), kept.nbytes, memcpyDeviceToDevice, stream)

    one.address_of = lambda name, ops: kept.data.ptr if name == tensor else right(name, ops)
    one.launch = late


def best_of_job(pair: Mapping[str, Any], folder: Path) -> tuple[Any, bytes]:
    """The best kernel of a bf16 job that a temporary server ran on this machine's GPU, and the zip of its artifact."""
    with running_server(folder / "data", "auto") as url, Client(url) as client:
        job_id = client.submit({"pair": {**pair, "dtype": "bf16"}, "budget": BUDGET})["id"]
        for _ in client.events(job_id, timeout_s=240):
            pass
        job = client.job(job_id)
        assert job["state"] == "succeeded", job
        best = client.best(job_id)
        assert best["artifact"] is not None
        content = client.artifact(best["artifact"]["digest"]).content
    assert not best["simulated"], "another service has the card: run these tests one after the other"
    assert best["library"] is not None
    assert "scaled_dot_product_attention" in best["library"]["attention"]
    for row in best["finals"]:
        print(row["candidate"]["plan_kind"], row["time_us"], row["speedup"], row["candidate"]["schedule"])
    return best, content
