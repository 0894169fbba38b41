"""Checks a manifest's launches against their plans: a recipe's grid, safety and workspace are compared with the header
of the plan that the kernel reads. `runtime/src/plan_check.c` does the same for an index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tuner.core.plan.table.header import (
    TICKET,
    Header,
    OlderHeader,
    is_of_older_version,
    read_header,
    read_older_header,
)
from tuner.errors import InvalidInput, WordError

Json = Mapping[str, Any]
#: In a manifest: the launches that replace ``launches`` on a card on which these do not fit.
FALLBACK = "fallback_launches"
#: The fields of such a launch that are its own; all others are as in the launch that it replaces.
_OWN_OF_FALLBACK = {"plan", "proof", "grid", "first_tasks", "workspace"}
_Found = TypeVar("_Found", Header, OlderHeader)
#: Maximum SM clock cycles of a wait, about ten minutes. A larger limit would hardly bound a wait.
MOST_SPIN_CYCLES = 10**12
#: In a workspace: the offsets of signals and of the abort record, as in `Workspace` of launch_args.cuh; the alignment
#: of its parts; the minimum size of one tile's parts.
_SIGNALS_OFFSET, _ABORT_OFFSET, _ALIGNMENT, _LEAST_SLOT_BYTES = 256, 128, 256, 64
_WORD_BYTES = 4
#: The number of CTAs whose first tasks are in a kernel's parameter: 16 bytes each, as hexadecimal digits in a manifest.
_FIRST_TASK_DIGITS = 32


def check_launches(manifest: Json, files: Mapping[str, bytes]) -> None:
    """Checks all launches of products, and those that replace them on a card that holds fewer clusters; `files`
    contains their plans. Plans from older programs are checked as far as their version allows.

    Raises:
        InvalidInput: the message names the launch, and the plan's value.
    """
    _check_list("launches", manifest, files)
    if FALLBACK in manifest:
        _check_fallback(manifest["launches"], manifest[FALLBACK])
        _check_list(FALLBACK, manifest, files)


def _check_list(name: str, manifest: Json, files: Mapping[str, bytes]) -> None:
    launches = manifest[name]
    if any(is_of_older_version(files[one["plan"]]) for one in launches):
        _check_older(launches, files)
        return
    if launches:
        check_spin_limit("parameter.spin_limit_cycles", manifest["parameter"]["spin_limit_cycles"])
    headers = [_header(f"{name}[{index}].plan", files[one["plan"]], read_header) for index, one in enumerate(launches)]
    is_paired = any(launch["stream"] for launch in launches)
    if is_paired:
        _check_pair(launches, headers)
    for index, (launch, header) in enumerate(zip(launches, headers, strict=True)):
        where = f"{name}[{index}]"
        _check_grid(where, launch, header)
        _check_weights(where, launch, header)
        mailboxes = _mailbox_bytes(manifest["workload"]) if header.in_band_ops else 0
        _check_workspace(f"{where}.workspace", launch, header, mailboxes, None if is_paired else index)
        _check_residency(where, launch, needs_all_ctas=header.needs_all_ctas and not is_paired)


def _check_fallback(launches: list[Json], fallback: list[Json]) -> None:
    """Checks that a fallback has the same launches of the same kernel, with other plans, and grids that are not
    larger."""
    if len(fallback) != len(launches):
        raise wrong(FALLBACK, f"of {len(fallback)}", f"of {len(launches)}, one for each of launches")
    for index, (one, other) in enumerate(zip(launches, fallback, strict=True)):
        for name in one.keys() | other.keys():
            if name not in _OWN_OF_FALLBACK and one.get(name) != other.get(name):
                raise wrong(f"{FALLBACK}[{index}].{name}", other.get(name), one.get(name))
        if other["grid"][0] > one["grid"][0]:
            raise wrong(f"{FALLBACK}[{index}].grid", other["grid"], f"no larger than {one['grid']}")


def _check_older(launches: list[Json], files: Mapping[str, bytes]) -> None:
    is_paired = any(launch["stream"] for launch in launches)
    for index, launch in enumerate(launches):
        where = f"launches[{index}]"
        header = _header(f"{where}.plan", files[launch["plan"]], read_older_header)
        _check_size(where, launch, header.num_ctas)
        space, signals = launch["workspace"], _WORD_BYTES * header.num_signals
        for name in ("bytes", "zero_bytes"):
            if (found := space.get(name, space["bytes"])) < signals:
                raise wrong(f"{where}.workspace.{name}", found, f"at least {signals}, for {header.num_signals} signals")
        if header.needs_all_ctas and not is_paired and not launch.get("needs_all_ctas", True):
            raise wrong(f"{where}.needs_all_ctas", False, True)


def _header(field: str, words: bytes, read: Callable[[bytes], _Found]) -> _Found:
    try:
        return read(words)
    except WordError as error:
        raise InvalidInput(field, str(error), _REMEDY) from error


def _check_size(where: str, launch: Json, num_ctas: int) -> None:
    if launch["grid"] != (right := [num_ctas * launch["cluster"][0], 1, 1]):
        raise wrong(f"{where}.grid", launch["grid"], right)


def _check_grid(where: str, launch: Json, header: Header) -> None:
    digits = len(launch["first_tasks"])
    _check_size(where, launch, header.num_ctas)
    if digits and header.assignment != TICKET and digits < _FIRST_TASK_DIGITS * header.num_ctas:
        raise wrong(f"{where}.first_tasks", f"{digits} digits", f"{_FIRST_TASK_DIGITS} for each of {header.num_ctas}")


def _check_weights(where: str, launch: Json, header: Header) -> None:
    """Checks the first tasks in a kernel's parameter, whose weights it copies at once; the kernel must be a wgmma
    kernel.
    """
    reads_early = launch["programmatic_dependent_launch"] and launch["first_tasks"] and header.assignment != TICKET
    if reads_early and not launch.get("reads_weights_before_wait", True):  # missing in older manifests
        raise wrong(f"{where}.reads_weights_before_wait", False, True)


def _check_workspace(where: str, launch: Json, header: Header, mailboxes: int, own: int | None) -> None:
    """Checks a launch's workspace; `own` is its number, or None if two launches share one."""
    space = launch["workspace"]
    if own is not None and (space["index"], bool(space["is_second"])) != (own, False):
        raise wrong(f"{where}.index", space["index"], f"{own}, and no second launch of a pair")
    counters = _SIGNALS_OFFSET + _WORD_BYTES * header.num_signals
    arrivals = _WORD_BYTES * header.num_split_tiles * launch["cluster"][0]
    zeros = _aligned(counters) + _aligned(arrivals) + mailboxes
    zero_bytes = space.get("zero_bytes", space["bytes"])  # in older manifests, all of it is zeroed
    if zero_bytes < zeros:
        raise wrong(f"{where}.zero_bytes", zero_bytes, f"at least {zeros}, for {header.num_signals} signals")
    if space["bytes"] < (least := zero_bytes + _LEAST_SLOT_BYTES * header.num_split_tiles):
        raise wrong(f"{where}.bytes", space["bytes"], f"at least {least}")
    if (at := space["abort_record"]["offset"]) != _ABORT_OFFSET:
        raise wrong(f"{where}.abort_record.offset", at, _ABORT_OFFSET)


def _check_residency(where: str, launch: Json, *, needs_all_ctas: bool) -> None:
    cooperative, programmatic = launch["cooperative"], launch["programmatic_dependent_launch"]
    if cooperative and programmatic:
        raise wrong(f"{where}.cooperative", True, "false: a launch cannot be both cooperative and programmatic")
    if not needs_all_ctas:
        return
    if not launch.get("needs_all_ctas", True):  # missing in older manifests
        raise wrong(f"{where}.needs_all_ctas", False, True)
    if not (cooperative or programmatic):
        raise wrong(f"{where}.cooperative", False, "true, since it is not programmatic")
    if not launch.get("plain", {"cooperative": True})["cooperative"]:
        raise wrong(f"{where}.plain.cooperative", False, True)


def _check_pair(launches: list[Json], headers: list[Header]) -> None:
    """Checks two launches that run concurrently: the first waits for nothing, and the second begins after its gate."""
    found = [(one["stream"], one["workspace"]["index"], bool(one["workspace"]["is_second"])) for one in launches]
    if found != [(0, 0, False), (1, 0, True)]:
        raise wrong("launches", found, "two, with streams 0 and 1, one workspace, of which the second is_second")
    if headers[0].num_waits:
        raise wrong("launches[0].plan", f"of {headers[0].num_waits} waits", "without any, before a second stream")
    gate, grid = launches[1].get("start_gate", launches[1].get("gate")), launches[0]["grid"][0]
    if headers[0].num_signals and (not gate or gate["num_ctas"] != grid):
        raise wrong("launches[1].start_gate", gate and gate["num_ctas"], f"one of the first launch's {grid} CTAs")


def _mailbox_bytes(workload: Json) -> int:
    """Two halves for each product that another op reads; if it is passed in band, with two bytes per element."""
    products = [op for op in workload["ops"] if op.get("op") is None]
    read, rows = {op["source"] for op in products}, max(op["m"] for op in products)
    return sum(2 * _aligned(2 * rows * op["n"]) for op in products if op["name"] in read)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def check_spin_limit(field: str, cycles: int) -> None:
    """Checks that waits are bounded, with enough time.

    Raises:
        InvalidInput: the message names the field.
    """
    if not 1 <= cycles <= MOST_SPIN_CYCLES:
        raise wrong(field, cycles, f"1 to {MOST_SPIN_CYCLES}")


def wrong(field: str, found: Any, right: Any) -> InvalidInput:
    """A field that differs from a launch's plan."""
    return InvalidInput(field, f"is {found}, but according to its plan it must be {right}", _REMEDY)


_REMEDY = "fetch or build it again"
