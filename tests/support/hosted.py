"""Programs that start at once, because they are forked from a process of an environment of its own that has done all
imports: a server's take five seconds, a command's one."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

#: What servers and commands of clients import, and programs of tests that make and open packs.
_IMPORTED = (
    "tuner.server.app",
    "tuner.cli",
    "tuner.client.cli",
    "tuner.client.commands.submit",
    "tuner.client.commands.fetch",
    "tuner.client.commands.job_commands",
    "tuner.client.follow.many",
    "tuner.runtime.binding.native",
    "tests.support.compiled",
    "tests.support.packs",
    "uvicorn.protocols.http.h11_impl",
)


class Host:
    """The process, and the programs that are forked from it."""

    def __init__(self, environment: dict[str, str]) -> None:
        """Starts it with these variables."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.support.hosted import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def begin(self, program: str, *arguments: str, out: Path, log: Path) -> int:
        """Forks a process that runs `program` with `arguments` as `python -c` does, and appends what it prints to these
        files; returns its id."""
        return self._ask(program=program, arguments=arguments, out=str(out), log=str(log))

    def wait(self, pid: int) -> int:
        """The exit status of a process that ends by itself or was sent a signal."""
        return self._ask(pid=pid)

    def stop(self) -> None:
        """Ends the process; those that it began go on."""
        with self._process:
            assert self._process.stdin
            self._process.stdin.close()

    def _ask(self, **request: Any) -> int:
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


def serve() -> None:
    """Answers each line of a `Host` with a process id or an exit status."""
    for name in _IMPORTED:
        __import__(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        if "pid" in request:
            print(os.waitstatus_to_exitcode(os.waitpid(request["pid"], 0)[1]), flush=True)
        elif pid := os.fork():
            print(pid, flush=True)
        else:
            _run(**request)


def _run(program: str, arguments: list[str], out: str, log: str) -> NoReturn:
    status: Any = 1
    try:
        with ExitStack() as stack:
            os.dup2(stack.enter_context(Path(os.devnull).open()).fileno(), 0)
            for number, path in enumerate((out, log), start=1):
                os.dup2(stack.enter_context(Path(path).open("a")).fileno(), number)
        sys.argv = ["-c", *arguments]
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = end.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else int(status is not None))
