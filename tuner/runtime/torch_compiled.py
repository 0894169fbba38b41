"""The PyTorch operator on a card, in C++: built once, then used by `torch_op` if available.

    python -m tuner.runtime.torch_compiled

PyTorch's own builder compiles `runtime/torch/tuner_torch.cpp` in about a minute, with this machine's C++ compiler and
ninja, and without the CUDA toolkit. The library is stored in the cache folder of the runtime. A call costs the host
less than half of what it costs in Python. If it is not built, the operator does the same in Python.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from tuner.runtime.binding import native
from tuner.runtime.binding.native import Shape, Tensors
from tuner.runtime.programs.ffn import Ffn

_SOURCE = native.FOLDER / "torch" / "tuner_torch.cpp"
_INCLUDE = native.FOLDER / "include"
_NAME = "tuner_torch"
#: PyTorch's own C function, which compiled graphs call: (device, output address of the stream), 0 if it succeeded.
_CURRENT_STREAM = "aoti_torch_get_current_cuda_stream"


class _Known(ctypes.Structure):
    """`tuner_torch_ffn` of the source."""

    _fields_ = (
        ("by_rows", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("shape", Shape),
        ("tensors", Tensors),
        ("launch", ctypes.c_void_p),
        ("error", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
        ("activations", ctypes.POINTER(ctypes.c_char_p)),
        ("num_activations", ctypes.c_int64),
    )


class Compiled:
    """The loaded library; from now on the operator uses it on a card."""

    def __init__(self, path: Path, current_stream: int) -> None:
        """`current_stream`: the address of PyTorch's function.

        Raises:
            OSError: the library cannot be loaded.
        """
        torch.ops.load_library(path)
        self._register = ctypes.CDLL(str(path)).tuner_torch_register
        self._register.argtypes, self._register.restype = (ctypes.c_int64, ctypes.c_void_p), None
        self._current_stream = current_stream

    def register(self, number: int, ffn: Ffn, activations: Sequence[str]) -> None:
        """Registers a prepared FFN by its weights; `activations` are all names of its activation. `number`
        distinguishes several with the same weights."""
        c, kernels = native.library(), ffn.kernels()
        names = (ctypes.c_char_p * len(activations))(*(name.encode() for name in activations))
        by_rows = (ctypes.c_void_p * len(kernels))(*kernels)
        known = _Known(
            by_rows=ctypes.addressof(by_rows),
            num_rows=len(kernels),
            shape=ffn.weights.shape,
            tensors=ffn.tensors,
            launch=ctypes.cast(c.tuner_ffn_launch_from, ctypes.c_void_p),
            error=ctypes.cast(c.tuner_error, ctypes.c_void_p),
            current_stream=self._current_stream,
            activations=names,
            num_activations=len(names),
        )
        self._register(number, ctypes.addressof(known))

    def forget(self, number: int) -> None:
        """Unregisters a prepared FFN."""
        self._register(number, None)


def kept_at() -> Path:
    """The path of the library, existing or not; its name depends on sources and PyTorch's version."""
    text = _SOURCE.read_bytes() + b"".join(path.read_bytes() for path in sorted(_INCLUDE.rglob("*.h")))
    digest = hashlib.sha256(text + torch.__version__.encode()).hexdigest()[:16]
    return native.cache_folder() / f"lib{_NAME}-{digest}.so"


def build() -> Path:
    """The library, compiled if missing.

    Raises:
        RuntimeError, OSError: ninja or a C++ compiler is missing, or fails; the message comes from PyTorch.
    """
    from torch.utils import cpp_extension

    path = kept_at()
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        cpp_extension.load(
            name=_NAME,
            sources=[str(_SOURCE)],
            extra_include_paths=[str(_INCLUDE)],
            extra_cflags=["-O2"],
            build_directory=folder,
            with_cuda=False,
            is_python_module=False,
        )
        os.replace(Path(folder) / f"{_NAME}.so", path)
    return path


def current_stream() -> int:
    """The address of PyTorch's function that returns a device's current stream; 0 if this PyTorch supports no card."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
        return ctypes.cast(getattr(library, _CURRENT_STREAM), ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


def load() -> Compiled | None:
    """The library; None if it was not built for this PyTorch, or there is no supported card."""
    path, stream = kept_at(), current_stream()
    return Compiled(path, stream) if stream and path.exists() else None


if __name__ == "__main__":
    print(build())
