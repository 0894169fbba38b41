"""The C runtime: compiled by this machine's compiler when it is first needed, and called through ctypes."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.runtime.binding import rows
from tuner.runtime.binding.header import Header

#: The C sources, as in the wheel and, through a link, in a checkout.
FOLDER = Path(__file__).parents[1] / "c"
_FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=default", "-pthread")

#: Their declarations.
HEADER = Header(FOLDER / "include" / "tuner" / "tuner.h")
_OF = HEADER.constants
OK, LIBRARY, NONE, ABORTED, OTHER_CARD = (
    _OF[f"TUNER_{name}"] for name in ("OK", "LIBRARY", "NONE", "ABORTED", "OTHER_CARD")
)
NEEDS_RESET, NO_PDL, HEADS_FIRST = _OF["TUNER_NEEDS_RESET"], _OF["TUNER_NO_PDL"], _OF["TUNER_HEADS_FIRST"]
AS_MEASURED, SAFE_WEIGHTS = _OF["TUNER_AS_MEASURED"], _OF["TUNER_SAFE_WEIGHTS"]
GATED, BIAS, RESIDUAL, ROW_SCALE = (_OF[f"TUNER_{name}"] for name in ("GATED", "BIAS", "RESIDUAL", "ROW_SCALE"))
DTYPES = {dtype.row.array_name: dtype.row.number for dtype in Dtype}
ACTIVATIONS = {str(one): one.row.number for one in Activation}


class RuntimeFailure(RuntimeError):
    """A call of the runtime failed; the message comes from the runtime."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        #: A `tuner_status` of tuner.h.
        self.status = status


class WrongOperand(RuntimeFailure, ValueError):
    """An operand is not what the launch expects; nothing was launched."""

    def __init__(self, sentence: str) -> None:
        super().__init__(-1, sentence)


@HEADER.struct
class Shape(ctypes.Structure):
    """`tuner_shape`."""


@HEADER.struct
class Choice(ctypes.Structure):
    """`tuner_choice`."""


@HEADER.struct
class Tensors(ctypes.Structure):
    """`tuner_tensors`."""


@HEADER.struct
class Launch(ctypes.Structure):
    """`tuner_launch`."""


@HEADER.struct
class AbortRecord(ctypes.Structure):
    """`tuner_abort_record`."""


@HEADER.struct
class AttentionShape(ctypes.Structure):
    """`tuner_attention_shape`."""


@HEADER.struct
class AttentionChoice(ctypes.Structure):
    """`tuner_attention_choice`."""


@HEADER.struct
class AttentionTensors(ctypes.Structure):
    """`tuner_attention_tensors`."""


@HEADER.struct
class AttentionRefusal(ctypes.Structure):
    """`tuner_attention_refusal`."""


@HEADER.struct
class LayerShape(ctypes.Structure):
    """`tuner_layer_shape`."""


@HEADER.struct
class LayerTensor(ctypes.Structure):
    """`tuner_layer_tensor`."""


@HEADER.struct
class Weights(ctypes.Structure):
    """`tuner_weights`."""


@HEADER.struct
class LayerTensors(ctypes.Structure):
    """`tuner_layer_tensors`."""


@HEADER.struct
class StoredProduct(ctypes.Structure):
    """`tuner_stored_product`."""


def sources() -> list[Path]:
    """The C files, by name."""
    return sorted((FOLDER / "src").glob("*.c"))


def build(folder: Path, *, compiler: str | None = None, flags: tuple[str, ...] = ()) -> Path:
    """The shared library in `folder`, compiled if missing; its name depends on sources, compiler and flags.

    Raises:
        RuntimeFailure: there is no C compiler, or it fails.
    """
    command = compiler or os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    program = shutil.which(command.split()[0]) or shutil.which("cc")
    if program is None:
        raise RuntimeFailure(-1, "there is no C compiler: install gcc or clang, or set CC")
    files = [*sources(), *sorted(FOLDER.rglob("*.h"))]
    flags = (*flags, *_flags_of_rows(folder))
    text = b"".join(path.read_bytes() for path in files) + repr((program, _FLAGS, flags)).encode()
    path = folder / f"libtuner_runtime-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".so")
    os.close(handle)
    arguments = [program, *_FLAGS, *flags, f"-I{FOLDER / 'include'}", *map(str, sources()), "-o", temporary, "-ldl"]
    ran = subprocess.run(arguments, capture_output=True, text=True)
    if ran.returncode != 0:
        Path(temporary).unlink()
        raise RuntimeFailure(-1, f"the C compiler rejected the runtime:\n{ran.stderr}")
    os.replace(temporary, path)
    return path


def _flags_of_rows(folder: Path) -> tuple[str, ...]:
    """The compiler flags that name the header with the rows of packages, in `folder`, if there are any."""
    text = rows.header()
    if text == rows.HEADER.read_text():
        return ()
    path = folder.resolve() / f"rows-{hashlib.sha256(text.encode()).hexdigest()[:16]}.h"
    folder.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(f".{os.getpid()}")  # another process may write it, too
    written.write_text(text)
    written.replace(path)
    return (f'-DTUNER_ROWS_FILE="{path}"',)


def cache_folder() -> Path:
    """Where the compiled runtime is stored: ``TUNER_RUNTIME_CACHE``, or the user's cache folder."""
    named = os.environ.get("TUNER_RUNTIME_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(named) if named else Path(base).expanduser() / "tuner"


def bind(path: Path) -> ctypes.CDLL:
    """A compiled runtime with its functions' types."""
    library = ctypes.CDLL(str(path))
    HEADER.bind(library)
    library.tuner_ffn_launch_from.argtypes = (ctypes.c_void_p,)  # an address: a pointer object takes time
    return library


@functools.cache
def library() -> ctypes.CDLL:
    """The runtime library of this process. ``TUNER_LIBCUDA`` names a driver library other than the machine's."""
    loaded = bind(build(cache_folder()))
    if named := os.environ.get("TUNER_LIBCUDA"):
        checked(loaded, loaded.tuner_load_driver(named.encode()))
    return loaded


def checked(loaded: ctypes.CDLL, status: int) -> int:
    """Returns the status unless it is a failure.

    Raises:
        RuntimeFailure: it is one.
    """
    if status < 0:
        raise RuntimeFailure(status, loaded.tuner_error().decode(errors="replace"))
    return status
