"""A pack of whole layers for vLLM, tuned on this machine's card by the commands that a user types.

python -m benchmarks.runtime.vllm_pack --out layers.tunerpack [--batches 1,8,32] [--max-length 8192] [--trials 24]
    [--seconds 200] [--gpu auto]

A service of its own starts. One job a batch size tunes a layer of Llama-3-8B from its attention on, over pages of 16
tokens, tokens first, as vLLM 0.26 has them. Lengths are drawn up to `--max-length`, which is vLLM's `max_model_len`: a
full graph cannot choose by length."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.runtime.model import Steps, service
from tuner.packs.read import read_pack

CLIENT = ("-m", "tuner.client.cli")
#: As vLLM 0.26 has its cache by default, on an H200.
OPTIONS = ("--dtype", "bf16", "--page-tokens", "16", "--tokens-first", "--lengths", "uniform")


def main(arguments: Sequence[str] | None = None) -> None:
    """Tunes, and prints what the pack holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="llama3-8b")
    parser.add_argument("--batches", default="1,8,32", help="with commas")
    parser.add_argument("--max-length", type=int, default=8192)
    parser.add_argument("--trials", type=int, default=24, help="of each job")
    parser.add_argument("--search-seconds", type=float, default=30.0, help="of each job's search")
    parser.add_argument("--seconds", type=float, default=200.0, help="of all steps")
    parser.add_argument("--gpu", default="auto", help="auto: this machine's first usable GPU; or simulated:<id>")
    options = parser.parse_args(arguments)
    steps = Steps(options.seconds)
    with tempfile.TemporaryDirectory() as folder, service(Path(folder), options.gpu) as url:
        jobs = []
        for batch in options.batches.split(","):
            sizes = ("--model", options.model, "--sequences", batch, "--max-length", str(options.max_length))
            budget = ("--trials", str(options.trials), "--seconds", str(options.search_seconds))
            asked = ("submit", "decoder-layer", *sizes, *OPTIONS, *budget)
            jobs.append(steps.run(*CLIENT, *asked, TUNER_URL=url).strip())
        steps.run(*CLIENT, "watch", *jobs, TUNER_URL=url)
        wanted = [part for job in jobs for part in ("--job", job)]
        steps.run(*CLIENT, "pack", *wanted, "-o", str(options.out), TUNER_URL=url)
    for entry in read_pack(options.out.read_bytes()).entries:
        print(entry.shape)
        for rung in entry.rungs:
            kind = rung.kernel.manifest["plan_kind"] if rung.kernel else "library"
            print(f"  {rung.m_hi} sequences of up to {rung.max_length}: {kind}, {rung.speedup} times as fast")


if __name__ == "__main__":
    main()
