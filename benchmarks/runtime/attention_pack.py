"""A pack of Llama-3-8B's MLPs and attentions, by jobs of a service on this machine's card.

python -m benchmarks.runtime.attention_pack PACK [--batch 1,16] [--trials 40] [--gpu auto]

Of each batch size it has the MLP, and the attention with o_proj over a cache of 1,024 tokens, in bf16: what
`benchmarks.runtime.decode_step --attention` runs. Two jobs a batch size, each a quarter of a minute on an H200.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.runtime.decode_step import CACHE_ROWS
from benchmarks.runtime.model import service
from tuner.client import Client
from tuner.client.packs import pack_of_jobs

MLP = {"d_in": 4096, "d_hidden": 14336, "d_out": 4096, "activation": "silu", "gated": True, "dtype": "bf16"}
ATTENTION = {"model": "llama3-8b", "max_length": CACHE_ROWS, "dtype": "bf16"}


def pairs_of(batch: int) -> list[dict[str, Any]]:
    """What is tuned for one batch size, as `POST /jobs` takes it."""
    return [{"kind": "ffn", "m": batch, **MLP}, {"kind": "decoder-attention", "sequences": batch, **ATTENTION}]


def tuned(client: Client, pair: dict[str, Any], trials: int) -> str:
    """The job that has searched it to its end.

    Raises:
        RuntimeError: it did not succeed.
    """
    job = client.submit({"pair": pair, "budget": {"trials": trials}})
    *_, last = client.events(job["id"])
    best = client.best(job["id"])
    print(pair["kind"], last["data"]["state"], best["verdict"], best["winner"])
    if last["data"]["state"] != "succeeded":
        raise RuntimeError(f"{job['id']} is {last['data']['state']}")
    return str(job["id"])


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--batch", default="1", help="sequences of a step, with commas between them")
    parser.add_argument("--trials", type=int, default=40, help="of each job")
    parser.add_argument("--gpu", default="auto", help="auto: this machine's first usable GPU; or simulated:<id>")
    options = parser.parse_args(arguments)
    pairs = [pair for batch in options.batch.split(",") for pair in pairs_of(int(batch))]
    with (
        tempfile.TemporaryDirectory() as name,
        service(Path(name), options.gpu) as url,
        Client(url) as client,
    ):
        jobs = [tuned(client, pair, options.trials) for pair in pairs]
        options.pack.write_bytes(pack_of_jobs(client, jobs))


if __name__ == "__main__":
    main()
