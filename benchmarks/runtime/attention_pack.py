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

from benchmarks.runtime.decode_step import CACHE_ROWS
from benchmarks.runtime.model import MODELS, Steps, service

#: Of both jobs.
SECONDS = 600.0


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--batch", default="1", help="sequences of a step, with commas between them")
    parser.add_argument("--trials", type=int, default=40, help="of each job")
    parser.add_argument("--gpu", default="auto", help="auto: this machine's first usable GPU; or simulated:<id>")
    options = parser.parse_args(arguments)
    asked = ("--dtype", "bf16", "--m", options.batch, "--context", str(CACHE_ROWS), "--trials", str(options.trials))
    with tempfile.TemporaryDirectory() as name, service(Path(name), options.gpu) as url:
        command = ("-m", "tuner.client.cli", "tune-model", str(MODELS[0].config), *asked, "-o", str(options.pack))
        Steps(SECONDS).run(*command, TUNER_URL=url)


if __name__ == "__main__":
    main()
