"""Runs every soak program in turn, which takes hours on two cores. An interrupted run can be continued.

python -m tests.soak [NAME ...] [--seed 1] [--seconds 3600]
"""

from __future__ import annotations

import argparse
import time

from tests.soak.program import run
from tests.soak.programs import PROGRAMS


def main() -> None:
    """Runs the named programs, or all; the exit code tells whether one failed or did not finish in time."""
    names = [program.name for program in PROGRAMS]
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no new step after this many")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(names):
        parser.error(f"no program is called {', '.join(sorted(unknown))}: choose from {', '.join(names)}")
    end = time.monotonic() + arguments.seconds
    problems: list[str] = []
    for program in PROGRAMS:
        if not arguments.names or program.name in arguments.names:
            wrong = run(program, seed=arguments.seed, seconds=end - time.monotonic())
            problems += (
                [f"{program.name}: not done yet"] if wrong is None else [f"{program.name}: {one}" for one in wrong]
            )
    if problems:
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    main()
