"""The C runtime: compiled by this machine's compiler when it is first needed, and called by ctypes."""

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

#: The C sources, as they lie in the wheel and, by a link, in a checkout.
FOLDER = Path(__file__).parent / "c"
_FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=default", "-pthread")

OK, LIBRARY, NONE, ABORTED, OTHER_CARD = range(5)
NEEDS_RESET = -8
NO_PDL = 1
AS_MEASURED, SAFE_WEIGHTS = 1, 2
GATED, BIAS, RESIDUAL, ROW_SCALE = 1, 2, 4, 8
HEADS_FIRST = 1
DTYPES = {dtype.row.array_name: dtype.row.number for dtype in Dtype}
ACTIVATIONS = {str(one): one.row.number for one in Activation}


class RuntimeFailure(RuntimeError):
    """A call of the runtime failed; the message is its sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        #: Of `tuner_status` in tuner.h.
        self.status = status


class WrongOperand(RuntimeFailure, ValueError):
    """An operand is not what the launch takes; nothing was launched."""

    def __init__(self, sentence: str) -> None:
        super().__init__(-1, sentence)


class Shape(ctypes.Structure):
    """`tuner_shape`."""

    _fields_ = (
        ("dtype", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("d_in", ctypes.c_int32),
        ("d_hidden", ctypes.c_int32),
        ("d_out", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
    )


class Choice(ctypes.Structure):
    """`tuner_choice`."""

    _fields_ = (
        ("kernel", ctypes.c_uint32),
        ("m_lo", ctypes.c_int32),
        ("m_hi", ctypes.c_int32),
        ("speedup", ctypes.c_double),
        ("memory_bytes", ctypes.c_size_t),
        ("text", ctypes.c_char_p),
        ("digest", ctypes.c_uint8 * 32),
    )


class Tensors(ctypes.Structure):
    """`tuner_tensors`."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("x", "w1", "w2", "b1", "b2", "residual", "row_scale", "hidden", "y")
    )


class Launch(ctypes.Structure):
    """`tuner_launch`."""

    _fields_ = (
        ("ffn", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("m", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("tensors", Tensors),
    )


class AbortRecord(ctypes.Structure):
    """`tuner_abort_record`."""

    _fields_ = (
        ("task", ctypes.c_int32),
        ("signal", ctypes.c_int32),
        ("seen", ctypes.c_uint32),
        ("expected", ctypes.c_uint32),
        ("cta", ctypes.c_int32),
    )


class AttentionShape(ctypes.Structure):
    """`tuner_attention_shape`."""

    _fields_ = (
        ("dtype", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("new_tokens", ctypes.c_int32),
        ("page_tokens", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("window", ctypes.c_int32),
        ("d_out", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("soft_cap", ctypes.c_float),
    )


class AttentionChoice(ctypes.Structure):
    """`tuner_attention_choice`."""

    _fields_ = (
        ("program", ctypes.c_uint32),
        ("sequences", ctypes.c_int32),
        ("max_length", ctypes.c_int32),
        ("speedup", ctypes.c_double),
        ("memory_bytes", ctypes.c_size_t),
        ("text", ctypes.c_char_p),
        ("digest", ctypes.c_uint8 * 32),
    )


class AttentionTensors(ctypes.Structure):
    """`tuner_attention_tensors`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "keys", "values", "lengths", "pages", "w", "y")),
        ("num_pages", ctypes.c_int64),
    )


class AttentionRefusal(ctypes.Structure):
    """`tuner_attention_refusal`."""

    _fields_ = tuple((name, ctypes.c_int32) for name in ("kind", "sequence", "value", "end"))


class LayerShape(ctypes.Structure):
    """`tuner_layer_shape`."""

    _fields_ = (
        ("attention", AttentionShape),
        ("d_in", ctypes.c_int32),
        ("num_in_front", ctypes.c_int32),
        ("num_products", ctypes.c_int32),
        ("ops", ctypes.c_char_p),
    )


class LayerTensor(ctypes.Structure):
    """`tuner_layer_tensor`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("role", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dims", ctypes.c_int32 * 4),
        ("has_pages", ctypes.c_int32),
    )


class LayerTensors(ctypes.Structure):
    """`tuner_layer_tensors`."""

    _fields_ = (
        ("addresses", ctypes.POINTER(ctypes.c_void_p)),
        ("num_addresses", ctypes.c_uint32),
        ("num_pages", ctypes.c_int64),
    )


_SIGNATURES = {
    "tuner_load_driver": (ctypes.c_char_p,),
    "tuner_pack_open": (ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)),
    "tuner_pack_open_bytes": (ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)),
    "tuner_pack_check": (ctypes.c_void_p, ctypes.c_int),
    "tuner_pack_shape": (ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(Shape), ctypes.POINTER(ctypes.c_uint32)),
    "tuner_ffn_find": (ctypes.c_void_p, ctypes.POINTER(Shape), ctypes.c_int32, ctypes.POINTER(Choice)),
    "tuner_ffn_prepare": (
        ctypes.c_void_p,
        ctypes.POINTER(Choice),
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_uint32,
        ctypes.POINTER(ctypes.c_void_p),
    ),
    "tuner_ffn_launch": (
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.POINTER(Tensors),
        ctypes.c_void_p,
        ctypes.c_uint32,
    ),
    "tuner_ffn_launch_from": (ctypes.c_void_p,),
    "tuner_abort_poll": (ctypes.c_void_p, ctypes.POINTER(AbortRecord)),
    "tuner_reset": (ctypes.c_void_p, ctypes.c_void_p),
    "tuner_pack_attention": (
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.POINTER(AttentionShape),
        ctypes.POINTER(ctypes.c_uint32),
    ),
    "tuner_attention_find": (
        ctypes.c_void_p,
        ctypes.POINTER(AttentionShape),
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.POINTER(AttentionChoice),
    ),
    "tuner_attention_prepare": (
        ctypes.c_void_p,
        ctypes.POINTER(AttentionChoice),
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.POINTER(ctypes.c_void_p),
    ),
    "tuner_attention_launch": (
        ctypes.c_void_p,
        ctypes.POINTER(AttentionTensors),
        ctypes.c_void_p,
        ctypes.c_uint32,
    ),
    "tuner_attention_refused": (ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(AttentionRefusal)),
    "tuner_attention_reset": (ctypes.c_void_p, ctypes.c_void_p),
    "tuner_pack_layer": (
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.POINTER(LayerShape),
        ctypes.POINTER(ctypes.c_uint32),
    ),
    "tuner_layer_find": (
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.POINTER(AttentionChoice),
    ),
    "tuner_layer_tensor_at": (
        ctypes.c_void_p,
        ctypes.POINTER(AttentionChoice),
        ctypes.c_uint32,
        ctypes.POINTER(LayerTensor),
    ),
    "tuner_layer_prepare": (
        ctypes.c_void_p,
        ctypes.POINTER(AttentionChoice),
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.POINTER(ctypes.c_void_p),
    ),
    "tuner_layer_launch": (ctypes.c_void_p, ctypes.POINTER(LayerTensors), ctypes.c_void_p, ctypes.c_uint32),
    "tuner_layer_refused": (ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(AttentionRefusal)),
    "tuner_layer_reset": (ctypes.c_void_p, ctypes.c_void_p),
}


def sources() -> list[Path]:
    """The C files, by name."""
    return sorted((FOLDER / "src").glob("*.c"))


def build(folder: Path, *, compiler: str | None = None, flags: tuple[str, ...] = ()) -> Path:
    """The shared library in `folder`, compiled where it is not there yet; its name tells sources, compiler and flags.

    Raises:
        RuntimeFailure: there is no C compiler, or it refuses.
    """
    command = compiler or os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    program = shutil.which(command.split()[0]) or shutil.which("cc")
    if program is None:
        raise RuntimeFailure(-1, "there is no C compiler: install gcc or clang, or name one in CC")
    files = [*sources(), *sorted(FOLDER.rglob("*.h"))]
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
        raise RuntimeFailure(-1, f"the C compiler refused the runtime:\n{ran.stderr}")
    os.replace(temporary, path)
    return path


def cache_folder() -> Path:
    """Where the compiled runtime is kept: ``TUNER_RUNTIME_CACHE``, or the user's cache folder."""
    named = os.environ.get("TUNER_RUNTIME_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(named) if named else Path(base).expanduser() / "tuner"


def bind(path: Path) -> ctypes.CDLL:
    """A compiled runtime with its functions' types."""
    library = ctypes.CDLL(str(path))
    for name, types in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, ctypes.c_int
    for name in ("tuner_pack_close", "tuner_ffn_release", "tuner_attention_release", "tuner_layer_release"):
        getattr(library, name).argtypes, getattr(library, name).restype = (ctypes.c_void_p,), None
    library.tuner_error.argtypes, library.tuner_error.restype = (), ctypes.c_char_p
    return library


@functools.cache
def library() -> ctypes.CDLL:
    """The runtime of this process. ``TUNER_LIBCUDA`` names another driver library than the machine's."""
    loaded = bind(build(cache_folder()))
    if named := os.environ.get("TUNER_LIBCUDA"):
        checked(loaded, loaded.tuner_load_driver(named.encode()))
    return loaded


def checked(loaded: ctypes.CDLL, status: int) -> int:
    """A status that is no failure.

    Raises:
        RuntimeFailure: it is one.
    """
    if status < 0:
        raise RuntimeFailure(status, loaded.tuner_error().decode(errors="replace"))
    return status
