"""Checks everything that a worker sends: one gate for samples, energies, counters, clocks, traces, builds, files and
cards. False values within these ranges cannot be detected; values outside of them are refused, since results are
stored permanently."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, NoReturn

from tuner.core.problem.gpu import Gpu
from tuner.core.trial.evaluator import ArtifactFiles, Environment, FinalsTimes
from tuner.core.trial.outcome import Metric
from tuner.core.trial.reports.inspection import Trace
from tuner.errors import Unbelievable

_Range = tuple[float, float]

#: Microseconds, from a nanosecond to a quarter of an hour.
_TIME_US: _Range = (1e-3, 1e9)
#: A difference of two readings may be slightly below 0.
_SECONDS: _Range = (-1.0, 1e7)
_RATIO: _Range = (1e-9, 1e9)
#: A share is a quotient of sums.
_SHARE: _Range = (-1e-6, 1 + 1e-6)
_COUNT: _Range = (0, 2**31 - 1)
_BYTES: _Range = (0, 2**48)
_RATE: _Range = (1.0, 1e24)

#: Ranges by the name of the number's field or container; all other numbers are limited to what the database can store.
_RANGES: dict[str, _Range] = {
    **dict.fromkeys(("time_us", "times_us", "library_us", "forecast_us", "true_us"), _TIME_US),
    **dict.fromkeys(("speedup", "library_speedup"), _RATIO),
    **dict.fromkeys(("stage_s", "compile_s"), _SECONDS),
    **dict.fromkeys(("clock_mhz", "library_clock_mhz", "clocks_mhz"), (0, 100_000)),
    **dict.fromkeys(("wait", "load", "compute", "store", "tail"), _SHARE),
    **dict.fromkeys(("launch", "task", "op", "tile_m", "tile_n", "cta", "sm"), _COUNT),
    **dict.fromkeys(("num_dropped", "num_passes", "num_rounds", "num_threads", "num_places"), _COUNT),
    **dict.fromkeys(("smem_bytes", "l2_bytes", "workspace_bytes"), _BYTES),
    **dict.fromkeys(("smem_per_sm_bytes", "smem_per_cta_bytes", "dram_bytes"), (1, 2**48)),
    **dict.fromkeys(("taken_ns", "ready_ns", "loaded_ns", "computed_ns", "stored_ns", "makespan_ns"), (0, 10**13)),
    **dict.fromkeys(("dram_bytes_per_s", "tensor_flops_per_s"), _RATE),
    **dict.fromkeys(("num_sms", "registers_per_sm", "threads_per_sm"), (1, 2**20)),
    "compute_capability": (0, 1000),
    "registers_per_thread": (0, 255),
    "cluster_size": (1, 32),
    "process_of_round": (0, 1),
    "chain_length": (1, 10**6),
    "spread": (0, 1e6),
    "rel_error": (0, 1),
    "run_mj": (1e-9, 1e12),
    "power_w": (0, 1e5),
    "window_s": (0, 1e5),
}
_ANY: _Range = (-(2.0**63), 2.0**63 - 1024)

_MOST_ITEMS = 2**20
_MOST_CHARACTERS = 2**22
_MOST_BYTES = 2**28
_KEY = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{0,200}")
_STAGE = re.compile(r"[a-z_]{1,20}(\.[a-z_]{1,20}){0,2}")
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,79}")
#: A target's id, which has ``simulated:`` before it, has at most 64 characters in the database.
_GPU_ID = re.compile(r"[a-z0-9][a-z0-9._+()-]{0,53}")
#: Maximum length of the texts of an environment, as in the database.
_MOST_IN_ENVIRONMENT = {"gpu_name": 100}
_MOST_IN_VERSION = 40
#: The files of an artifact; `workers/builder/artifact.py` creates them.
_FILE = re.compile(
    r"kernel\.(cu|cubin)|(guarded|safe)\.cubin|(fallback_)?plan\d{1,4}\.bin|manifest\.json"
    r"|[a-z][a-z0-9_-]{0,39}\d{1,4}(_[a-z]{1,20})?\.(cu|cubin|bin)"  # the files of a launch op, by its kind
    r"|op\d{1,4}_\d{1,2}_[A-Za-z_][A-Za-z0-9_]{0,39}\.bin"
)
_MANIFEST = "manifest.json"


def believe(found: Any, name: str = "answer") -> None:
    """Checks everything in `found`: an outcome, finals, an inspection, a build, files, an environment, a GPU.

    Raises:
        Unbelievable: names what is impossible.
    """
    if found is None or isinstance(found, bool):
        return
    if isinstance(found, int | float):
        _check_number(found, name, _RANGES.get(name.rpartition(".")[2], _ANY))
    elif isinstance(found, str):
        _check_text(found, name)
    elif isinstance(found, bytes):
        if len(found) > _MOST_BYTES:
            _refuse(name, f"has {len(found)} bytes", f"at most {_MOST_BYTES} are accepted")
    elif isinstance(found, dict):
        _check_dict(found, name)
    elif isinstance(found, tuple | list):
        if len(found) > _MOST_ITEMS:
            _refuse(name, f"has {len(found)} items", f"at most {_MOST_ITEMS} are accepted")
        for item in found:
            believe(item, name)
    elif is_dataclass(found) and not isinstance(found, type):
        _check_fields(found, name)


def _refuse(name: str, what: str, right: str) -> NoReturn:
    raise Unbelievable(f"{name} {what}; {right}")


def _check_number(value: float, name: str, within: _Range) -> None:
    low, high = within
    if not low <= value <= high:  # also refuses NaN
        shown = f"{value:g}" if isinstance(value, float) or abs(value) < 10**15 else "with too many digits"
        _refuse(name, f"is {shown}", f"it must be between {low:g} and {high:g}")


def _check_text(text: str, name: str) -> None:
    if len(text) > _MOST_CHARACTERS:
        _refuse(name, f"has {len(text)} characters", f"at most {_MOST_CHARACTERS} are accepted")
    if "\x00" in text or not (text.isascii() or _is_unicode(text)):
        _refuse(name, "is no text", "text must not contain zero bytes or unpaired surrogates")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_dict(found: dict[Any, Any], name: str) -> None:
    if len(found) > _MOST_ITEMS:
        _refuse(name, f"has {len(found)} keys", f"at most {_MOST_ITEMS} are accepted")
    form = _STAGE if name.endswith("stage_s") else _KEY
    for key, value in found.items():
        if not isinstance(key, str) or not form.fullmatch(key):
            _refuse(name, f"has the key {str(key)[:80]!a}", "that is not the name of one")
        believe(value, name)


@cache
def _ranges_of(kind: Any) -> tuple[tuple[str, _Range], ...]:
    return tuple((field.name, _RANGES.get(field.name, _ANY)) for field in fields(kind))


def _check_fields(found: Any, name: str) -> None:
    kind: Any = type(found)
    for field, within in _ranges_of(kind):
        value = getattr(found, field)
        if type(value) is int or type(value) is float:  # most values are: a trace has many thousands
            if not within[0] <= value <= within[1]:
                _check_number(value, f"{name}.{field}", within)
        else:
            believe(value, f"{name}.{field}")
    match found:
        case FinalsTimes():
            _check_finals(found, name)
        case ArtifactFiles():
            _check_files(found, name)
        case Trace() if any(span.op >= len(found.op_names) for span in found.spans):
            _refuse(f"{name}.spans", f"name an op beyond the {len(found.op_names)} that exist", "each has one of these")
        case Metric() if not _TAG.fullmatch(found.tag):
            _refuse(f"{name}.tag", f"is {found.tag[:80]!a}", "a tag consists of letters, digits and underscores")
        case Gpu() if not _GPU_ID.fullmatch(found.id):
            _refuse(f"{name}.id", f"is {found.id[:80]!a}", "an id consists of lower-case letters, digits and -")
        case Environment() if long := _too_long(found):
            _refuse(f"{name}.{long[0]}", f"has more than {long[1]} characters", "versions and names are shorter")


def _too_long(found: Environment) -> tuple[str, int] | None:
    """The name of the first text of an environment that is too long, and the maximum length."""
    most = {field.name: _MOST_IN_ENVIRONMENT.get(field.name, _MOST_IN_VERSION) for field in fields(found)}
    texts = ((name, getattr(found, name)) for name in most)
    return next(((name, most[name]) for name, text in texts if isinstance(text, str) and len(text) > most[name]), None)


def _check_finals(found: FinalsTimes, name: str) -> None:
    if len(found.times_us) != len(found.reasons):
        _refuse(name, f"has {len(found.times_us)} rows and {len(found.reasons)} reasons", "each row has one")
    num_rounds = len(found.process_of_round)
    for row in found.times_us:
        if row is not None and (len(row) != num_rounds or not row):
            _refuse(
                f"{name}.times_us",
                f"has a row of {len(row)} rounds",
                (f"{num_rounds} were run, and there must be at least one"),
            )


def _check_files(found: ArtifactFiles, name: str) -> None:
    """Checks that the names are ours, and that the manifest lists exactly these bytes."""
    for file in found.files:
        if not _FILE.fullmatch(file):
            _refuse(f"{name}.files", f"has {file[:80]!a}", "that is not a file of an artifact")
    try:
        listed = json.loads(found.files[_MANIFEST], parse_constant=_no_number)["files"]
        sums = {file: facts["sha256"] for file, facts in listed.items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Unbelievable(f"{name}.files has no {_MANIFEST} that lists its files; every artifact has one") from error
    if sums != {file: hashlib.sha256(data).hexdigest() for file, data in found.files.items() if file != _MANIFEST}:
        _refuse(f"{name}.files", "are not the files that the manifest lists", "names and checksums must be the same")


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
