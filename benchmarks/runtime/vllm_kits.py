"""Makes vLLM for a card without a network: files to carry there, each of a limited size.

python -m benchmarks.runtime.vllm_kits OUT [--project .] [--kit-mib 36]

On the card, which has Python 3.12, PyTorch 2.11 (CUDA 13), Triton and transformers, once all files have arrived:

cat OUT/kit-*.bin | xz -dc | tar -xf - -C SITE, then PYTHONPATH=SITE VLLM_USE_FLASHINFER_SAMPLER=0

It takes 10 to 20 minutes on two cores and 4 GB of disk; a second call with the same OUT continues. Of vLLM's kernels,
those for other architectures than sm_90 are left out, and with them FlashAttention 2, experts, FlashMLA and DeepGEMM.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

VLLM = "vllm==0.26.0"
#: What vLLM imports, beyond an image with PyTorch, Triton and transformers.
NEEDS = """
annotated_types anthropic apache-tvm-ffi==0.1.11 astor blake3 cachetools cbor2 compressed_tensors==0.17.0 depyf==0.20.0
dill distro docstring_parser fastapi==0.136.3 httptools httpx_sse humming_kernels==0.1.20 ijson interegular jiter
jmespath jsonschema jsonschema_specifications lark==1.2.2 llguidance lm_format_enforcer==0.11.3 loguru mcp
mistral_common model_hosting_container_standards msgspec openai==2.54.0 openai_harmony opentelemetry_api
opentelemetry_semantic_conventions_ai outlines_core==0.2.14 partial_json_parser prometheus_fastapi_instrumentator
pybase64 pycountry pydantic pydantic_core pydantic_extra_types pydantic_settings pyjwt python_dotenv python_json_logger
python_multipart pyzmq referencing rpds_py setproctitle sniffio sse_starlette starlette==1.0.1 supervisor tabulate
typing_inspection uvicorn watchfiles websockets xgrammar==0.2.9
"""
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)]
PLATFORMS += [*(f"manylinux{year}_x86_64" for year in (2014, 2010, 1)), "any"]
#: What a dense model in bf16 does not need.
DROPPED = """
vllm/_vllm_fa2* vllm/vllm_flash_attn/_vllm_fa2* vllm/vllm-rs vllm/_qutlass* vllm/third_party/fmha_sm100 vllm/_moe_C*
vllm/_flashmla* vllm/third_party/deep_gemm mistral_common/data/tekken*
"""
#: A container of device code, and its entries: PTX, machine code, and kinds that are not read here.
MAGIC, PTX, MACHINE_CODE = struct.pack("<I", 0xBA55ED50), 1, 2
KINDS = {1, 2, 4, 8, 16, 32, 64}
CONTAINER, ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQ")
SM = 90


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Device code for one architecture: where it is in the file, and where its container is."""

    container: int
    start: int
    kind: int
    num_bytes: int
    sm: int


def main() -> None:
    """Downloads, prunes and packs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--project", type=Path, default=Path(), help="a checkout, whose wheel has the plugin")
    parser.add_argument("--kit-mib", type=int, default=36, help="maximum size of a file")
    given = parser.parse_args()
    out: Path = given.out
    site = out / "site"
    if not site.is_dir():
        _unpack(_wheels(out / "wheels"), site)
    _add_project(given.project, site, out / "project")
    _write_kits(site, out, given.kit_mib << 20)


def _pip(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check"], check=True)


def _wheels(folder: Path) -> list[Path]:
    """vLLM and its dependencies for the card's Python, which need not be this one's."""
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    there = ["--python-version", "3.12", "--implementation", "cp", *platforms]
    if len(list(folder.glob("*.whl"))) <= len(NEEDS.split()):
        _pip("download", "--no-deps", "--only-binary=:all:", *there, "-d", folder, VLLM, *NEEDS.split())
    return list(folder.glob("*.whl"))


def _unpack(wheels: list[Path], site: Path) -> None:
    part = site.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    for wheel in wheels:
        zipfile.ZipFile(wheel).extractall(part)
    for found in [found for dropped in DROPPED.split() for found in part.glob(dropped)]:
        shutil.rmtree(found) if found.is_dir() else found.unlink()
    for library in part.glob("vllm/_C*.so"):
        prune(library)
    part.rename(site)


def _add_project(project: Path, site: Path, built: Path) -> None:
    """vLLM finds the plugin by the entry points of the unpacked wheel."""
    shutil.rmtree(built, ignore_errors=True)
    _pip("wheel", "--no-deps", "-w", built, project.absolute())
    (wheel,) = built.glob("*.whl")
    for old in site.glob("*tuner*"):
        shutil.rmtree(old)
    zipfile.ZipFile(wheel).extractall(site)


def _write_kits(site: Path, out: Path, most_bytes: int) -> None:
    for old in out.glob("kit-*.bin"):
        old.unlink()
    stream = out / "all.tar.xz"
    order = sorted((path.name for path in site.iterdir()), key=lambda name: (name == "vllm", name))
    same = ("--sort=name", "--mtime=2020-01-01", "--owner=0", "--group=0")
    with stream.open("wb") as file:
        packed = subprocess.Popen(["tar", "-cf", "-", *same, "-C", str(site), *order], stdout=subprocess.PIPE)
        subprocess.run(["xz", "-6", "-T0", "-c"], stdin=packed.stdout, stdout=file, check=True)
        if packed.wait():
            raise SystemExit(f"tar ended with {packed.returncode}")
    content = stream.read_bytes()
    num_kits = -(-len(content) // most_bytes)
    each = -(-len(content) // num_kits)
    for number in range(num_kits):
        (out / f"kit-{number}.bin").write_bytes(content[number * each : (number + 1) * each])
    stream.unlink()
    print(f"{num_kits} kits of {each / 2**20:.1f} MiB, together sha256 {hashlib.sha256(content).hexdigest()}")


def prune(library: Path) -> None:
    """Keeps of each container in a shared library what a card of `SM` runs: its machine code, else the newest PTX that
    it can compile, else the smallest entry. The library keeps its size; the rest becomes zeros."""
    code = bytearray(library.read_bytes())
    for start, group in groupby(list(_entries(bytes(code))), key=lambda entry: entry.container):
        entries = list(group)
        ptx = [one for one in entries if one.kind == PTX and one.sm <= SM]
        newest = max((one.sm for one in ptx), default=None)
        kept = (
            [one for one in entries if one.kind == MACHINE_CODE and one.sm == SM]
            or [one for one in ptx if one.sm == newest]
            or [min(entries, key=lambda one: one.num_bytes)]
        )
        _, _, header, size = CONTAINER.unpack_from(code, start)
        body = b"".join(bytes(code[one.start : one.start + one.num_bytes]) for one in kept)
        code[start + header : start + header + size] = body.ljust(size, b"\0")
        struct.pack_into("<Q", code, start + 8, len(body))
    library.write_bytes(code)


def _entries(code: bytes) -> Iterator[Entry]:
    """The entries of all containers in a file. A container has a header of 16 bytes: magic number, version, size of the
    header, and bytes of its entries. An entry has kind, size of its header, bytes, and its architecture at byte 28."""
    at = code.find(MAGIC)
    while at != -1:
        _, version, header, size = CONTAINER.unpack_from(code, at)
        after = at + len(MAGIC)
        if (version, header) == (1, 16) and 0 < size < len(code):
            start, after = at + header, at + header + size
            while start < at + header + size:
                kind, _, own_header, num_bytes = ENTRY.unpack_from(code, start)
                if kind not in KINDS or not 32 <= own_header <= 4096:
                    after = at + len(MAGIC)
                    break
                (sm,) = struct.unpack_from("<I", code, start + 28)
                yield Entry(container=at, start=start, kind=kind, num_bytes=own_header + num_bytes, sm=sm)
                start += own_header + num_bytes
        at = code.find(MAGIC, after)


if __name__ == "__main__":
    main()
