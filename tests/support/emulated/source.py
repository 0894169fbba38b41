"""Compiles a generated source to a library that runs it on the CPU."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import struct
import subprocess
from pathlib import Path

from tests.support.repository import ROOT
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Engine, Tiling
from tuner.workers.source.render import render
from tuner.workers.source.tensor_maps import MapSizes, TensorMap
from tuner.workers.source.variants import Variant

#: The folder of the files that replace device files.
HERE = Path(__file__).parent
_KEPT = ROOT / "build" / "emulated"
_OPTIONS = (
    "-std=c++17",
    "-fno-strict-aliasing",
    "-w",
    "-Wno-psabi",
    "-fpermissive",
    "-fPIC",
    "-mf16c",
    *("-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables"),  # in four fifths of the time
)
#: Device files that are replaced by C++; the start gate is a separate kernel.
_REPLACED = {"ptx.cuh": "ptx.h", "ptx_hopper.cuh": "ptx_hopper.h", "wgmma.cuh": "", "start_gate.cuh": ""}
#: The instruction that epilogue_transposed.cuh wraps.
_TRANSPOSED = """const int slot = emu::meet(two), lane = emu::lane();
  u32 turned = 0;
  for (int half = 0; half < 2; ++half) {
    const u32 word = static_cast<u32>(emu::warp().values[slot][(lane % 4 * 2 + half) * 4 + lane / 4 / 2]);
    turned |= static_cast<u32>(static_cast<u16>(lane / 4 % 2 ? word >> 16 : word)) << 16 * half;
  }
  return turned;"""
#: An instruction on two elements.
_BOTH = """template <class Of>
inline u32 both(u32 x, u32 y, Of of) {
  const float high = of(Element::widen(x >> 16), Element::widen(y >> 16));
  return Element::narrow_two(of(Element::widen(x), Element::widen(y)), high);
}
template <class Of>
inline u32 both(u32 x, u32 y, u32 z, Of of) {
  const float high = of(Element::widen(x >> 16), Element::widen(y >> 16), Element::widen(z >> 16));
  return Element::narrow_two(of(Element::widen(x), Element::widen(y), Element::widen(z)), high);
}
"""
#: Words of the device code in C++; assertions about code that is not compiled are left out.
RULES = (
    (r"  u32 turned;\n  asm volatile\(.*?\n  return turned;", "  " + _TRANSPOSED),
    (r'asm\("cvt\.rn\.f16x2\.e4m3x2.*?\);\n', "return emu::e4m3(bits);\n"),
    (r'asm\("cvt\.rn\.satfinite\.e4m3x2.*?\);\n', "bytes = emu::to_e4m3(low) | emu::to_e4m3(high) << 8;\n"),
    (r'asm\("cvt\.f32\.f16.*?\);\n', "value = emu::f16(bits);\n"),
    (r'asm\("cvt\.rn\.f16x2.*?\);\n', "packed = emu::to16(low) | static_cast<u32>(emu::to16(high)) << 16;\n"),
    (r'asm\("cvt\.rn\.bf16x2.*?\);\n', "packed = emu::tob16(low) | static_cast<u32>(emu::tob16(high)) << 16;\n"),
    (
        r'asm\("lop3\.b32.*?0xEA;" : "=r"\((\w+)\) : "r"\((.*?)\), "r"\((\w+)\), "r"\((\w+)\)\);\n',
        r"\1 = (\2 & \3) | \4;\n",
    ),
    (r'asm\("mul\.\w*x2.*?\);\n', "y = both(x, f, [](float one, float other) { return one * other; });\n"),
    (
        r'asm\("fma\.rn\.\w*x2.*?\);\n',
        "y = both(x, f, added, [](float one, float other, float third) { return one * other + third; });\n",
    ),
    (r"(struct Weights \{\n  enum : int \{ kBits = [48])", _BOTH + r"\1"),
    (r'asm volatile\(\s*"mma\.sync.*?\n  }\n', "emulated_multiply<Element>(d, a, b);\n  }\n"),
    (r"extern __shared__ __align__\(\d+\) unsigned char (\w+)\[\];", r"unsigned char* \1 = emu::cta().memory.data();"),
    (r"__shared__ ([\w:]+) (\w+);", r"\1& \2 = emu::static_of<\1>(__LINE__);"),
    (r'asm volatile\("red\.relaxed\.gpu[^;]*;" ::"l"\(address\)[^;]*;', "*address += value;"),
    (r"TUNER_CLUSTER_DIMS __launch_bounds__", "__launch_bounds__"),
    (r'extern "C" __global__ void', "static void"),
    (r'static_assert\((kNumTeams == 1|!kTmaEpilogue), "[^"]*"\);', ""),
)


def cpp_of(source: str, engine: Engine) -> str:
    """Converts a generated source to C++."""
    _, *texts = re.split(r"^// ---- (\S+)\n", source, flags=re.MULTILINE)
    parts: list[str] = []
    for name, device_text in zip(texts[::2], texts[1::2], strict=True):
        text = device_text
        if name in _REPLACED:
            text = (HERE / _REPLACED[name]).read_text() if _REPLACED[name] else ""
        for pattern, said in RULES:
            text = re.sub(pattern, said, text, flags=re.DOTALL)
        parts.append(text)
    struct_name = "WgmmaArgs" if engine is Engine.WGMMA else "LaunchArgs"
    return "\n".join([*parts, f"using KernelArgs = {struct_name};", (HERE / "launch.h").read_text()])


def library_of(
    workload: Workload,
    tiling: Tiling,
    changes: tuple[tuple[str, str], ...] = (),
    variant: Variant = Variant.MEASURED,
) -> ctypes.CDLL:
    """The compiled library, or a cached one; `changes` are applied to the generated source, which must contain each
    original text."""
    source = render(workload, tiling, variant=variant)
    for before, after in changes:
        assert before in source, before
        source = source.replace(before, after)
    text = cpp_of(source, tiling.engine)
    return built(text)


def built(text: str) -> ctypes.CDLL:
    """C++ that includes threads.h, compiled or from the cache, with threads.cpp, which is compiled once."""
    threads, common = (HERE / "threads.h").read_text(), (HERE / "threads.cpp").read_text()
    path = _KEPT / f"{_digest(threads + common + text)}.so"
    if not path.exists():
        header = _KEPT / _digest(threads) / "threads.h"
        if not header.with_suffix(".h.gch").exists():  # g++ uses it as a precompiled header, in a third of the time
            _compiled(header, threads, "-Og", "-x", "c++-header", to=header.with_suffix(".h.gch"))
        whole = _KEPT / _digest(threads + common) / "threads.o"
        if not whole.exists():
            _compiled(whole.with_suffix(".cpp"), common, "-O1", "-include", str(header), "-c", to=whole)
        # -Og compiles in two thirds of the time of -O1, and what it makes runs as fast.
        _compiled(path.with_suffix(".cpp"), text, "-Og", "-shared", "-include", str(header), str(whole), to=path)
    return ctypes.CDLL(str(path))


def _compiled(code: Path, text: str, *options: str, to: Path) -> None:
    """Compiles a text with g++; other processes may do the same concurrently."""
    code.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f"{os.getpid()}.{to.name}")
    written = code.with_name(f"{os.getpid()}.{code.name}")
    written.write_text(text)
    subprocess.run(["g++", *_OPTIONS, *options, "-o", str(part), str(written)], check=True)
    written.rename(code)
    part.rename(to)


def _digest(text: str) -> str:
    return hashlib.sha256(repr((_OPTIONS, text)).encode()).hexdigest()[:16]


def encoded(tensor_map: MapSizes, address: int) -> bytes:
    """A tensor map in the form that `copy_box` in ptx_hopper.h reads: address, rank, five sizes, four strides, the box;
    or, for a map of pixels, in that of `copy_pixels`: four sizes, three strides, channels and pixels, both corners, the
    stride."""

    def padded(values: tuple[int, ...], count: int) -> list[int]:
        return [*values, *[0] * (count - len(values))]

    if isinstance(tensor_map, TensorMap) and (im2col := tensor_map.im2col):
        sizes = (
            *tensor_map.dims,
            *tensor_map.strides_bytes,
            *tensor_map.box,
            im2col.lower,
            im2col.upper,
            im2col.stride,
        )
        return struct.pack("<14q", address, len(tensor_map.dims), *sizes).ljust(128, b"\0")
    words = [address, len(tensor_map.dims), *padded(tensor_map.dims, 5), *padded(tensor_map.strides_bytes, 4)]
    return struct.pack("<16Q", *words, *padded(tensor_map.box, 5))
