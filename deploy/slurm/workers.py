"""Workers on a Slurm partition by dask-jobqueue, each a batch job with a GPU; they are cancelled when this program
ends.

TUNER_SCHEDULER=tls://login.example:8786 python deploy/slurm/workers.py 8 --queue gpu --walltime 04:00:00

Other settings of a site (account, prologue, more directives) go into dask-jobqueue's own `jobqueue.yaml`. `--show`
prints the batch script and submits nothing. The batch jobs run `tuner worker`, like tuner-worker.sbatch next to this
file. SLURMCluster would start Dask's own worker, which runs any code that a peer sends.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from dask_jobqueue.slurm import SLURMJob

BATCH_SCRIPT = Path(__file__).with_name("tuner-worker.sbatch")
#: Slurm options of a worker: a card, and a signal before its time limit.
DIRECTIVES = ["--gpus=1", "--signal=B:TERM@30"]


class WorkerJob(SLURMJob):
    """A batch job with dask-jobqueue's header, and with the commands of the batch script."""

    def __init__(self, **options: Any) -> None:
        """`options` are those of `SLURMJob`; all other settings come from `jobqueue.yaml`."""
        super().__init__(**options)
        self.job_header += "".join(f"\n#SBATCH {directive}" for directive in DIRECTIVES)

    def job_script(self) -> str:
        """The batch script, as submitted by `sbatch`."""
        _, strict, commands = BATCH_SCRIPT.read_text().partition("set -euo pipefail\n")
        prologue = "".join(f"{line}\n" for line in self._job_script_prologue)
        return f"{self.shebang}\n{self.job_header}\n{prologue}{strict}{commands}"


async def run(jobs: list[WorkerJob]) -> None:
    """Submits the jobs, and cancels them at SIGINT or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        for job in jobs:
            await job.start()
            print(f"submitted {job.job_id}", flush=True)
        await stop.wait()
    finally:
        for job in jobs:
            if job.job_id is not None:
                await job.close()


def main() -> None:
    """Submits the workers, or shows their batch script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workers", type=int, nargs="?", default=1, help="number of workers")
    parser.add_argument("--queue", help="Slurm partition")
    parser.add_argument("--account", help="Slurm account to charge")
    parser.add_argument("--walltime", default="04:00:00", help="time limit of each worker, HH:MM:SS")
    parser.add_argument("--cores", type=int, default=8, help="cores of each worker, for its builds")
    parser.add_argument("--memory", default="32GB", help="memory of each worker")
    parser.add_argument("--show", action="store_true", help="print the batch script without submitting it")
    arguments = vars(parser.parse_args())
    num_workers, is_shown = arguments.pop("workers"), arguments.pop("show")
    named = [WorkerJob(name=f"tuner-{number}", job_name="tuner-worker", **arguments) for number in range(num_workers)]
    if is_shown:
        print(named[0].job_script(), end="")
    elif not os.environ.get("TUNER_SCHEDULER"):
        parser.error("set the scheduler's address: TUNER_SCHEDULER=tls://HOST:8786")
    else:
        asyncio.run(run(named))


if __name__ == "__main__":
    main()
