"""What the compiler reports on the kernels of the tests, recorded by what they are compiled from.

A report is a function of the source without its comments, the architecture, the options and the compiler's version. So
a kernel with a recorded report is not compiled again; any other one is, as after each change of the device code. The
record only saves time: tests assert the same of a recorded report and of a new one.

tests/compile/machine_code.py always compiles one kernel of each engine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.compiled import compile_source
from tests.support.repository import ROOT
from tuner.workers.builder.nvrtc import Resources, build_key, nvrtc_version, parse_log, write_atomically
from tuner.workers.source.render import without_comments

FILE = ROOT / "tests" / "compile" / "reports.json"
#: Names a folder; processes that have it compile all kernels, and put their reports there.
RECORDS = "RECORDED_REPORTS"
#: Sections of a cubin that contain code and what it needs to run: instructions, constants, a kernel's resources.
_SECTIONS = re.compile(r"\.text\.|\.nv\.constant|\.nv\.shared\.|\.nv\.info\.")
#: Sections that only have a size, such as shared memory.
_WITHOUT_BYTES = 8
#: Of a source without kernels.
NO_KERNEL = Resources(registers_per_thread=0, static_smem_bytes=0, spill_bytes=0, stack_bytes=0, warnings=())


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the compiler reports on a source, and the digest of its machine code."""

    resources: Resources
    code: str


def machine_code(cubin: bytes) -> str:
    """A digest (16 hex digits) of the executable sections of a cubin, a 64-bit ELF file; other sections contain symbol
    names."""
    (table,), (size, count, names) = struct.unpack_from("<Q", cubin, 40), struct.unpack_from("<3H", cubin, 58)
    headers = [struct.unpack_from("<2I4Q", cubin, table + number * size) for number in range(count)]
    digest, strings = hashlib.sha256(), headers[names][4]
    for name, kind, _, _, place, length in headers:
        text = cubin[strings + name : cubin.index(b"\0", strings + name)].decode()
        if _SECTIONS.match(text):
            held = b"" if kind == _WITHOUT_BYTES else cubin[place : place + length]
            digest.update(f"{text} {length} ".encode() + held)
    return digest.hexdigest()[:16]


def inputs_digest(source: str, arch: str) -> str:
    """A digest (16 hex digits) of everything that a build depends on."""
    return build_key(without_comments(source), arch, nvrtc_version())[:16]


@cache
def _recorded() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = json.loads(FILE.read_text())
    return found


def report_of(source: str, arch: str) -> Report:
    """The report on a source: the recorded one, or that of the compiler.

    Raises:
        BuildError: with the compiler's log.
    """
    key, folder = inputs_digest(source, arch), os.environ.get(RECORDS)
    if not folder and key in _recorded():
        registers, smem, spills, stack, code = _recorded()[key]
        resources = Resources(
            registers_per_thread=registers, static_smem_bytes=smem, spill_bytes=spills, stack_bytes=stack, warnings=()
        )
        return Report(resources=resources, code=code)
    cubin, log = compile_source(source, arch)
    report = Report(resources=parse_log(log) if "registers" in log else NO_KERNEL, code=machine_code(cubin))
    if folder and not report.resources.warnings:
        numbers = report.resources
        row = [numbers.registers_per_thread, numbers.static_smem_bytes, numbers.spill_bytes, numbers.stack_bytes]
        write_atomically(Path(folder) / key, json.dumps([*row, report.code]).encode())
    return report


def write(folder: Path) -> int:
    """Writes the file from the reports in a folder; returns their number."""
    rows = [f' "{path.name}": {path.read_text()}' for path in sorted(folder.iterdir())]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    return len(rows)
