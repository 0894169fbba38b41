"""Checks whether this machine, or its cluster, can build and measure, and explains how to fix problems."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tuner.errors import InvalidInput, TunerError
from tuner.versions import install_command

#: The driver's setting of who may read hardware counters.
_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
_PROBE_SOURCE = 'extern "C" __global__ void probe(int* out) { *out = 1; }'
_PROBE_ARCH = "sm_90"


class Finding(StrEnum):
    """The result of a check."""

    OK = "ok"
    #: A limitation, which does not affect a simulated GPU.
    WARN = "warn"
    #: The service cannot work like this.
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check."""

    name: str
    finding: Finding
    #: The finding, as text.
    found: str
    #: The remedy; empty if there is no problem.
    remedy: str = ""


def diagnose_workers() -> list[Check]:
    """Driver, CuPy, NVRTC and the permission for counters; a simulated GPU needs none of them."""
    return [_checked("driver", _driver), _checked("CuPy", _cupy), _checked("NVRTC", _nvrtc), _checked("CUPTI", _cupti)]


def diagnose_scheduler(scheduler: str, tls: Path | None, *, insecure: bool, within_s: float = 5.0) -> Check:
    """Whether a cluster's scheduler responds in time, and whether it has workers that this version supports."""
    name = "cluster"
    try:
        from tuner.dispatch.cluster.asking import call_the_roll

        roll = call_the_roll(scheduler, tls, insecure=insecure, deadline_s=within_s)
    except ModuleNotFoundError as error:
        remedy = install_command("server,cluster")
        return Check(name=name, finding=Finding.FAIL, found=f"{error.name} is not installed", remedy=remedy)
    except InvalidInput as error:
        return Check(name=name, finding=Finding.FAIL, found=f"{error.field}: {error.problem}", remedy=error.remedy)
    except TunerError as error:
        return Check(name=name, finding=Finding.FAIL, found=str(error),
                     remedy="start tuner scheduler there, or fix the address, certificates or network")  # fmt: skip
    if roll.refused:
        strangers = "; ".join(f"{address}: {why}" for address, why in roll.refused.items())
        return Check(name=name, finding=Finding.WARN, found=(
            f"these workers cannot be used by this version: {strangers}"
        ),
                     remedy="install the same version on all machines")  # fmt: skip
    cards = ", ".join(f"{count} x {target_id}" for target_id, count in sorted(roll.cards.items()))
    found = f"{scheduler} answers; workers: {roll.num_workers}, cards: {cards or 'none'}"
    if not roll.cards:
        return Check(name=name, finding=Finding.WARN, found=found,
                     remedy=f"start tuner worker --scheduler {scheduler} on a machine with a GPU")  # fmt: skip
    return Check(name=name, finding=Finding.OK, found=found)


def _checked(name: str, examine: Callable[[], Check]) -> Check:
    """The result of a check; an exception is a finding, too."""
    try:
        return examine()
    except Exception as error:
        return Check(name=name, finding=Finding.WARN, found=f"{type(error).__name__}: {error}",
                     remedy="fix this first; until then only a simulated GPU works")  # fmt: skip


def _driver() -> Check:
    from tuner.workers.host.cards import choice_of_gpus, missing_packages

    if missing := missing_packages():
        found = f"{', '.join(missing)} not installed"
        return Check(name="driver", finding=Finding.WARN, found=found, remedy=_install_worker())
    try:
        cards = choice_of_gpus()
    except TunerError as error:
        return Check(name="driver", finding=Finding.WARN, found=str(error),
                     remedy="use a whole card with driver 525 or newer, or pass --gpu simulated:h200")  # fmt: skip
    found = f"{cards.usable[0].driver}: " + ", ".join(f"{card.name} ({card.uuid})" for card in cards.usable)
    if cards.refused:
        return Check(name="driver", finding=Finding.WARN, found="; ".join([found, *cards.refused]),
                     remedy="nothing, if the other cards are enough")  # fmt: skip
    return Check(name="driver", finding=Finding.OK, found=found)


def _cupy() -> Check:
    for name in ("cupy-cuda13x", "cupy-cuda12x"):
        try:
            return Check(name="CuPy", finding=Finding.OK, found=f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return Check(name="CuPy", finding=Finding.WARN, found="it is not installed", remedy=_install_worker())


def _install_worker() -> str:
    return f"{install_command('worker-cuda13')} (driver 580 or newer), otherwise worker-cuda12"


def _nvrtc() -> Check:
    try:
        from tuner.workers.builder.nvrtc import compile_source, nvrtc_version

        compile_source(_PROBE_SOURCE, _PROBE_ARCH)
        return Check(name="NVRTC", finding=Finding.OK, found=f"{nvrtc_version()} compiles for {_PROBE_ARCH}")
    except (ImportError, OSError, RuntimeError, TunerError) as error:
        return Check(name="NVRTC", finding=Finding.WARN, found=f"it cannot compile: {error}",
                     remedy=_install_worker())  # fmt: skip


def _cupti() -> Check:
    if not _DRIVER_PARAMETERS.exists():
        return Check(name="CUPTI", finding=Finding.WARN, found="no NVIDIA driver is loaded",
                     remedy="load it, or serve with --gpu simulated:h200, whose counters are simulated")  # fmt: skip
    return judge_counters(_DRIVER_PARAMETERS.read_text(), is_admin=os.geteuid() == 0)


def judge_counters(parameters: str, *, is_admin: bool) -> Check:
    """Whether hardware counters may be read, from the text of the driver's parameters."""
    is_for_admins = "RmProfilingAdminOnly: 1" in parameters
    if is_for_admins and not is_admin:
        return Check(
            name="CUPTI",
            finding=Finding.WARN,
            found="the driver allows only administrators to read hardware counters",
            remedy=(
                "set the module option NVreg_RestrictProfilingToAdminUsers=0 and reload the "
                "module, or do without counters: times do not need them"
            ),
        )
    return Check(name="CUPTI", finding=Finding.OK, found="hardware counters can be read")
