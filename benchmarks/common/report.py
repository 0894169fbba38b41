"""The form of every results file: the origin of the figures, then the figures."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tuner.core.trial.evaluator import Environment

#: The machine of a benchmark without a card.
NO_GPU = {"gpu": "none", "driver": "", "cuda": ""}
#: Maximum length of a line with a whole row, in characters.
LINE = 120


def write_report(
    path: Path, rows: list[dict[str, Any]], machine: dict[str, Any], *, command: str = "", **tables: Any
) -> None:
    """Writes `rows` with the machine's `gpu`, `driver`, `cuda`, and this process's commit, date and command; `tables`
    are further entries of the file. `command`: the commands that were given, for a run in several processes."""
    meta = {**machine, "cpu": cpu_name(), **origin(machine, command)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(laid_out({"meta": meta, "rows": rows, **tables}))
    print(f"wrote {path}")


def origin(machine: dict[str, Any], command: str = "") -> dict[str, Any]:
    """The machine, and this process's date, commit and command (or `command`)."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {**machine, "date": date, "commit": commit(), "command": command or given_command()}


def laid_out(report: dict[str, Any]) -> str:
    """A report as text: a row is one line if it fits, else one line per field."""
    tables = ",\n".join(f" {json.dumps(name)}: {_table(table)}" for name, table in report.items())
    return f"{{\n{tables}\n}}\n"


def _table(table: dict[str, Any] | list[dict[str, Any]]) -> str:
    if isinstance(table, dict):
        return _row(table, " ")
    return "[\n" + ",\n".join(f"  {_row(row, '  ')}" for row in table) + "\n ]"


def _row(row: dict[str, Any], margin: str) -> str:
    line = json.dumps(row)
    if len(line) <= LINE:
        return line
    fields = ",\n".join(f"{margin} {json.dumps(name)}: {json.dumps(value)}" for name, value in row.items())
    return f"{{\n{fields}\n{margin}}}"


def given_command() -> str:
    """The command that started this process."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    name = module.name.removesuffix(".__main__") if module else sys.argv[0]
    return without_folders(" ".join(["python", "-m", name, *sys.argv[1:]]))


def without_folders(command: str) -> str:
    """A command without the folders of the machine on which it ran."""
    return re.sub(r"(?<=\s)/\S*/", "", command)


def write_merged(report: dict[str, Any], path: Path) -> None:
    """Writes the merge of several files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(laid_out(report))
    print(f"wrote {path}: {len(report['rows'])} rows")


def merge_report(path: Path, rows: list[dict[str, Any]], machine: dict[str, Any]) -> None:
    """Like `write_report`, for several programs that write to one file: rows of other checks stay, and every row has
    its own date and commit. The rows are printed."""
    ours = {row["check"] for row in rows}
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    own = {name: origin({})[name] for name in ("date", "commit")}
    write_report(
        path, [*(row for row in before if row.get("check") not in ours), *(row | own for row in rows)], machine
    )
    print(*rows, sep="\n", flush=True)


def rows_of_this_build(path: Path, machine: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a results file from this machine and this commit, for a run that continues; none if they come from
    elsewhere, or if there is no file."""
    if not path.exists():
        return []
    before = json.loads(path.read_text())
    same = {**machine, "commit": commit()}
    is_ours = all(before["meta"].get(name) == value for name, value in same.items())
    return list(before["rows"]) if is_ours else []


def machine_of(environment: Environment) -> dict[str, Any]:
    """A report's facts about a machine with a card, or a simulated one."""
    return {
        "gpu": environment.gpu_name,
        "driver": environment.driver,
        "cuda": environment.cuda,
        "clocks_mhz": environment.clocks_mhz,
        "kernel_version": environment.kernel_version,
    }


def driver_version() -> str:
    """Driver version of this machine's card, for programs without an evaluator."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0].strip()


def results_file(target_id: str, name: str) -> Path:
    """The path of a benchmark's results."""
    return Path(f"benchmarks/results/{target_id.replace(':', '-')}/{name}.json")


def machine_line(meta: dict[str, Any]) -> str:
    """A sentence on the origin of a page's figures, and a second one if rows are missing or come from several runs."""
    whole = "" if meta["complete"] else " Some rows are missing."
    if remark := meta.get("remark", "").rstrip("."):
        whole += f" {remark[:1].upper()}{remark[1:]}."
    return (
        f"{meta['gpu']}, driver {meta['driver']}, CUDA {meta['cuda']}, "
        f"commit {meta['commit'][:12]}, {meta['date']}.{whole}"
    )


def results_of(path: Path, target: str) -> dict[str, Any]:
    """The results from which a page is drawn.

    Raises:
        SystemExit: there are none; the message names the make target that measures them.
    """
    if not path.exists():
        raise SystemExit(f"there is no {path}: run `make {target}` on a card")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def redraw(page: Path, text: str, begin: str, end: str) -> None:
    """Replaces the text between two marks of a page."""
    before, rest = page.read_text().split(begin)
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{rest.split(end)[1]}")
    print(f"drew {page}")


def check_row(check: str, value: float, bar: float, **raw: Any) -> dict[str, Any]:
    """A figure that must not be above `bar`, its target, with its raw figures."""
    return {"check": check, "value": round(value, 6), "bar": bar, "holds": value <= bar, **raw}


def at_least_row(check: str, value: float, bar: float, **raw: Any) -> dict[str, Any]:
    """A figure that must not be below `bar`, its target."""
    return {"check": check, "value": round(value, 6), "bar": bar, "holds": value >= bar, **raw}


def failed_row(check: str, reason: str) -> dict[str, Any]:
    """A check without a figure, which therefore fails."""
    return {"check": check, "value": None, "bar": None, "holds": False, "reason": reason}


def taken(name: str, take: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of a check; if it raises, a failed row with the reason."""
    print(name, flush=True)
    try:
        return take()
    except Exception as error:
        return [failed_row(name, f"{type(error).__name__}: {error}")]


def commit() -> str:
    """The checkout's commit; TUNER_COMMIT gives it for a tree without history."""
    named = os.environ.get("TUNER_COMMIT")
    if named:
        return named
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def cpu_name() -> str:
    """The processor's model, or its architecture if the system does not report it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
