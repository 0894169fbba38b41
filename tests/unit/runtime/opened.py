"""A pack in the C runtime, with one of its kernels prepared."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.native.recorder import DeviceMemory, Recorder
from tests.support.packs import Made, ladder
from tuner.packs.records import SHAPE_FLAGS
from tuner.packs.shapes import ACTIVATIONS, Shape
from tuner.packs.write import write_pack
from tuner.runtime.binding import native

#: Sizes of the operands: multiples of 16, all different.
ADDRESSES = {field[0]: 0x1000000 * (i + 1) for i, field in enumerate(native.Tensors._fields_)}


def c_shape(shape: Shape) -> native.Shape:
    flags = sum(flag for name, flag in SHAPE_FLAGS.items() if getattr(shape, name))
    dtype = ("fp16", "bf16").index(shape.dtype)
    return native.Shape(dtype, ACTIVATIONS[shape.activation], shape.d_in, shape.d_hidden, shape.d_out, flags)


def tensors(**changed: int) -> native.Tensors:
    return native.Tensors(**{**ADDRESSES, **changed})


class Opened:
    """A pack of only `made`, opened and prepared."""

    def __init__(self, recorder: Recorder, made: Made, folder: Path, *, flags: int = 0, num_cached: int = 0) -> None:
        self.recorder, self.made, self.c = recorder, made, recorder.runtime
        path = folder / "one.tunerpack"
        entry = ladder(made.kernel)
        write_pack([entry], path)
        self.pack, self.ffn, self.choice = ctypes.c_void_p(), ctypes.c_void_p(), native.Choice()
        self.checked(self.c.tuner_pack_open(str(path).encode(), ctypes.byref(self.pack)))
        shape = c_shape(entry.shape)
        rows = made.workload.tile_ops[0].m
        assert self.c.tuner_ffn_find(self.pack, shape, rows, ctypes.byref(self.choice)) == native.OK
        recorder.cuda.fake_parameter_bytes(made.kernel.manifest["parameter"]["size_bytes"])
        self.memory = DeviceMemory(self.choice.memory_bytes)
        self.checked(
            self.c.tuner_ffn_prepare(
                self.pack, self.choice, self.memory.address, 0x77, flags, num_cached, ctypes.byref(self.ffn)
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.c.tuner_ffn_release(self.ffn)
        self.c.tuner_pack_close(self.pack)

    def checked(self, status: int) -> int:
        return native.checked(self.c, status)

    def launch(self, m: int, *, stream: int = 0x99, flags: int = 0, **changed: int) -> None:
        given = tensors(**changed)
        self.checked(self.c.tuner_ffn_launch(self.ffn, m, ctypes.byref(given), stream, flags))
