"""The recorder of driver calls, and the C runtime linked to it; calls are compared byte for byte."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import compiled
from tuner.runtime.binding import native

HERE = Path(__file__).parent


class _Call(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("values", ctypes.c_uint64 * 12),
        ("num_bytes", ctypes.c_uint32),
        ("bytes", ctypes.POINTER(ctypes.c_uint8)),
    )


@dataclass(frozen=True, kw_only=True)
class Call:
    """One driver call."""

    name: str
    values: tuple[int, ...]
    data: bytes

    @property
    def parameter(self) -> bytes:
        """The parameter of a launch."""
        return self.data

    @property
    def stream(self) -> int:
        """The stream of a launch."""
        return self.values[4]

    @property
    def attribute(self) -> tuple[int, int] | None:
        """The id and value of a launch attribute."""
        return (self.values[6], self.values[7]) if self.values[5] else None


def compile_c(folder: Path, name: str, sources: tuple[Path, ...], *flags: str) -> Path:
    """Compiles a program, or a library if `flags` have ``-shared``."""
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-g", *flags, *map(str, sources), "-ldl", "-pthread"]
    return Path(shutil.copy(compiled.built(name, *command), folder / name))


def compile_driver(folder: Path, name: str, *flags: str) -> Path:
    """Compiles the program `drive`, which contains the runtime."""
    include = f"-I{native.FOLDER / 'include'}"
    return compile_c(folder, name, (HERE / "drive.c", *native.sources()), include, *flags)


def compile_recorder(folder: Path) -> Path:
    """Compiles the recorder library."""
    return compile_c(folder, "libcuda.so.1", (HERE / "fake_libcuda.c",), "-shared", "-fPIC", "-O1")


class Recorder:
    """The recorder, and the runtime that calls it."""

    def __init__(self, folder: Path) -> None:
        path = compile_recorder(folder)
        self.path = path
        self.cuda = ctypes.CDLL(str(path))
        self.cuda.fake_call.restype = ctypes.POINTER(_Call)
        self.runtime = native.bind(Path(shutil.copy(compiled.runtime(*compiled.STRICT), folder)))
        native.checked(self.runtime, self.runtime.tuner_load_driver(str(path).encode()))

    def calls(self, name: str = "") -> list[Call]:
        """The calls since the last `clear`, optionally only those of one name."""
        return [call for call in self._all() if name in ("", call.name)]

    def clear_calls(self) -> None:
        """Forgets the calls."""
        self.cuda.fake_clear()

    def clear(self) -> None:
        """Clears the calls, and lets every call succeed again."""
        self.clear_calls()
        self.fail("", 0)
        self.cuda.fake_device(9, 0, 132, 13000)
        self.cuda.fake_occupancy(1, 132)
        self.cuda.fake_context(ctypes.c_void_p(0x1000))
        self.cuda.fake_green(None, 0)
        self.cuda.fake_capture(0)

    def fail(self, name: str, status: int, *, behind: int = 0) -> None:
        """Makes calls of `name` fail with `status` from now on, except for the first `behind`."""
        self._failing = name.encode()  # kept, since the recorder compares it at each call
        self.cuda.fake_fail(self._failing or None, status, behind)

    def _all(self) -> Iterator[Call]:
        for index in range(self.cuda.fake_num_calls()):
            call = self.cuda.fake_call(index).contents
            data = bytes(call.bytes[: call.num_bytes]) if call.num_bytes else b""
            yield Call(name=call.name.decode(), values=tuple(call.values), data=data)


class DeviceMemory:
    """Host memory at a multiple of 256, which the recorder treats as device memory."""

    def __init__(self, num_bytes: int) -> None:
        self._raw = (ctypes.c_uint8 * (num_bytes + 256))()
        self.num_bytes = num_bytes
        self.address = -(-ctypes.addressof(self._raw) // 256) * 256
        ctypes.memset(self.address, 0xCD, num_bytes)

    def read(self, offset: int, num_bytes: int) -> bytes:
        """The bytes of the memory."""
        return ctypes.string_at(self.address + offset, num_bytes)
