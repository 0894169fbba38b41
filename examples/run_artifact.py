"""Runs a fetched kernel with nothing but its zip, CuPy for arrays, and ctypes on libcuda.

tuner-client fetch best --job JOB --format zip --output best.zip
python examples/run_artifact.py best.zip

A folder with the files of the zip also works, such as the one that `make demo` leaves:

python examples/run_artifact.py build/best

Everything about the launch is read from manifest.json; tuner itself is not imported.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import struct
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

try:
    import cupy
except ModuleNotFoundError:  # printed once the artifact is known to be correct
    cupy = None

#: The newest manifest format that this program reads; a manifest without a format has format 1.
NEWEST_FORMAT = 6
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
COOPERATIVE, PROGRAMMATIC_STREAM_SERIALIZATION = 2, 6
#: CUtensorMapDataType.
DATA_TYPES = {"CU_TENSOR_MAP_DATA_TYPE_FLOAT16": 6, "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16": 9}
MAX_REL_ERROR = {"fp16": 2e-3, "bf16": 1.6e-2}


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id and a union of 64 bytes, of which a switch uses the first four."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_byte * 60))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_smem_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    )


class Artifact:
    """A loaded zip: the kernel on the card, and per launch its plan and workspace."""

    def __init__(self, path: str) -> None:
        files = read_files(Path(path))
        if cupy is None:
            sys.exit("CuPy is not installed; run: pip install 'cupy-cuda13x[ctk]'")
        self.files = files
        self.manifest: dict[str, Any] = json.loads(files["manifest.json"])
        cupy.cuda.runtime.free(0)  # makes the primary context current
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._launches: list[dict[str, Any]] = self.manifest["launches"]
        if kernel := self.manifest["kernel"]:  # an attention by itself has none
            self._module, self._function = self.load(kernel["cubin"], kernel["name"])
            smem_bytes = max(launch["dynamic_smem_bytes"] for launch in self._launches)
            self.set_attribute(self._function, MAX_DYNAMIC_SHARED_SIZE_BYTES, smem_bytes)
        if any(map(self._problem, self._launches)):  # built for a card that holds more clusters
            self._launches = self.manifest.get("fallback_launches", self._launches)
        self._plans = [cupy.asarray(bytearray(files[launch["plan"]])) for launch in self._launches]
        self._headers = [files[launch["plan"]][:64] for launch in self._launches]
        # Zeroed once, since its counters only grow. Launches with the same workspace index share it.
        spaces = {launch["workspace"]["index"]: launch["workspace"]["bytes"] for launch in self._launches}
        self._workspaces = {index: cupy.zeros(size, cupy.uint8) for index, size in spaces.items()}
        self._side = cupy.cuda.Stream(non_blocking=True)

    def run(self, tensors: dict[str, cupy.ndarray], stream: cupy.cuda.Stream) -> None:
        """Enqueues the launches in order; `tensors` has every tensor in the manifest."""
        launches = self._launches
        forks = any(launch["stream"] for launch in launches)
        if forks:
            self._side.wait_event(stream.record())
        for index, launch in enumerate(launches):
            on = self._side if launch["stream"] else stream
            if gate := launch.get("start_gate", launch.get("gate")):  # the name in format 1
                self._launch_start_gate(index, gate, on)
            self.launch_products(index, tensors, on)
        if forks:
            stream.wait_event(self._side.record())

    def load(self, cubin: str, name: str) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """Loads a cubin; returns its module and its kernel."""
        module = ctypes.c_void_p()
        self._check(self._cuda.cuModuleLoadData(ctypes.byref(module), self.files[cubin]))
        return module, self._named(module, name)

    def set_attribute(self, function: ctypes.c_void_p, attribute: int, value: int) -> None:
        """Sets a property of a kernel, given by its number in CUfunction_attribute."""
        self._check(self._cuda.cuFuncSetAttribute(function, attribute, value))

    def launch(self, config: LaunchConfig, function: ctypes.c_void_p, pointers: Any) -> None:
        """Enqueues a kernel."""
        self._check(self._cuda.cuLaunchKernelEx(ctypes.byref(config), function, pointers, None))

    def _named(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        self._check(self._cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
        return function

    def _launch_start_gate(self, index: int, gate: dict[str, Any], stream: cupy.cuda.Stream) -> None:
        values = (
            ctypes.c_void_p(self._workspace(index).data.ptr),
            ctypes.c_int(gate["num_ctas"]),
            ctypes.c_longlong(self.manifest["parameter"]["spin_limit_cycles"]),
        )
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        config = LaunchConfig(grid=tuple(gate["grid"]), block=tuple(gate["block"]), stream=stream.ptr)
        self.launch(config, self._named(self._module, gate["kernel"]), pointers)

    def _workspace(self, index: int) -> cupy.ndarray:
        return self._workspaces[self._launches[index]["workspace"]["index"]]

    def launch_products(self, index: int, tensors: dict[str, cupy.ndarray], stream: cupy.cuda.Stream) -> None:
        """Enqueues launch `index` of the manifest's `launches`."""
        launch = self._launches[index]
        parameter = ctypes.create_string_buffer(self._parameter(index, tensors))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        switches = {
            COOPERATIVE: launch["cooperative"],
            PROGRAMMATIC_STREAM_SERIALIZATION: launch["programmatic_dependent_launch"],
        }
        attributes = [LaunchAttribute(id=switch, value=1) for switch, is_on in switches.items() if is_on]
        if problem := self._problem(launch):
            sys.exit(problem)
        config = LaunchConfig(
            grid=tuple(launch["grid"]),
            block=tuple(launch["block"]),
            dynamic_smem_bytes=launch["dynamic_smem_bytes"],
            stream=stream.ptr,
            attributes=(LaunchAttribute * len(attributes))(*attributes),
            num_attributes=len(attributes),
        )
        self.launch(config, self._function, pointers)

    def _problem(self, launch: dict[str, Any]) -> str:
        """Why the launch does not fit on this device; empty if it fits. If all CTAs must be resident at once, the
        driver decides."""
        if not launch.get("needs_all_ctas", False) or (launch["cooperative"] and launch["cluster"][0] == 1):
            return ""  # a cooperative launch checks this itself, except for clusters
        per_sm, (threads, _, _) = ctypes.c_int(), launch["block"]
        ask = self._cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor
        self._check(ask(ctypes.byref(per_sm), self._function, threads, ctypes.c_size_t(launch["dynamic_smem_bytes"])))
        held = per_sm.value * cupy.cuda.Device().attributes["MultiProcessorCount"]
        if (cluster := launch["cluster"][0]) > 1:
            clusters, shape = ctypes.c_int(), (tuple(launch["grid"]), tuple(launch["block"]))
            config = LaunchConfig(*shape, launch["dynamic_smem_bytes"])
            ask_clusters = self._cuda.cuOccupancyMaxActiveClusters
            self._check(ask_clusters(ctypes.byref(clusters), self._function, ctypes.byref(config)))
            held = min(held, cluster * clusters.value)
        if held >= launch["grid"][0]:
            return ""
        return f"the kernel needs its {launch['grid'][0]} CTAs resident at once, and this device holds {held}"

    def _parameter(self, index: int, tensors: dict[str, cupy.ndarray]) -> bytes:
        """The kernel's one by-value struct, field by field as the manifest lays it out."""
        layout, launch = self.manifest["parameter"], self._launches[index]
        buffer = bytearray(layout["size_bytes"])
        sources = {op["name"]: op["source"] for op in self.manifest["workload"]["ops"]}
        sizes = {op["name"]: op for op in self.manifest["workload"]["ops"]}
        for field in layout["fields"]:
            name, offset = field["name"], field["offset"]
            op, _, member = name.partition(".")
            if name == "words":
                struct.pack_into("<Q", buffer, offset, self._plans[index].data.ptr)
            elif name == "workspace":
                struct.pack_into("<Q", buffer, offset, self._workspace(index).data.ptr)
            elif name == "spin_limit_cycles":
                struct.pack_into("<q", buffer, offset, layout["spin_limit_cycles"])
            elif name == "is_dependent":
                struct.pack_into("<i", buffer, offset, launch["programmatic_dependent_launch"])
            elif name == "is_second":
                struct.pack_into("<i", buffer, offset, launch["workspace"]["is_second"])
            elif name == "trace":
                continue  # null in a build without stamps
            elif name == "first_tasks":
                first = bytes.fromhex(launch["first_tasks"])
                buffer[offset : offset + len(first)] = first
            elif member.endswith("_map"):
                buffer[offset : offset + 128] = self.tensor_map(launch, name, tensors)
            elif name == "plan_header":
                buffer[offset : offset + 64] = self._headers[index]
            elif field["type"] == "int32":
                size = sizes[op][member] if member in sizes[op] else int(field["meaning"])
                struct.pack_into("<i", buffer, offset, size)
            elif field["type"] == "float32":
                struct.pack_into("<f", buffer, offset, float(field["meaning"]))
            else:
                tensor = field.get("tensor") or {"a": sources[op], "c": op}.get(member, name)
                address = tensors[tensor].data.ptr if tensor in tensors else 0
                struct.pack_into("<Q", buffer, offset, address)
        return bytes(buffer)

    def tensor_map(self, launch: dict[str, Any], name: str, tensors: dict[str, cupy.ndarray]) -> bytes:
        """The encoded map of a matrix for TMA: 128 bytes, made at an address that is a multiple of 64."""
        recipe = next(recipe for recipe in launch["tensor_maps"] if recipe["name"] == name)
        rank = len(recipe["dims"])
        buffer = ctypes.create_string_buffer(192)
        aligned = -(-ctypes.addressof(buffer) // 64) * 64
        corners = [(ctypes.c_int32 * 2)(*corner) for corner in recipe.get("corners", ())]  # of the walk over pixels
        box = (
            [ctypes.c_uint32(size) for size in recipe["box"]] if corners else [(ctypes.c_uint32 * rank)(*recipe["box"])]
        )
        encode = self._cuda.cuTensorMapEncodeIm2col if corners else self._cuda.cuTensorMapEncodeTiled
        status = encode(
            ctypes.c_void_p(aligned),
            DATA_TYPES[recipe["data_type"]],
            rank,
            ctypes.c_void_p(tensors[recipe["tensor"]].data.ptr),
            (ctypes.c_uint64 * rank)(*recipe["dims"]),
            (ctypes.c_uint64 * (rank - 1))(*recipe["strides_bytes"]),
            *corners,
            *box,
            (ctypes.c_uint32 * rank)(*recipe["element_strides"]),
            0,  # CU_TENSOR_MAP_INTERLEAVE_NONE
            3,  # CU_TENSOR_MAP_SWIZZLE_128B
            2,  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B
            0,  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
        )
        self._check(status)
        return ctypes.string_at(aligned, 128)

    def _check(self, status: int) -> None:
        if status != 0:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(status, ctypes.byref(text))
            raise RuntimeError(f"CUDA error {status}: {text.value!r}")


def read_files(path: Path) -> dict[str, bytes]:
    """Reads the files of a zip or a folder, and checks them against the manifest."""
    if path.is_dir():
        files = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    else:
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
    if "manifest.json" not in files:
        sys.exit(f"{path} has no manifest.json: pass the zip of an artifact, or the folder of its files")
    manifest: dict[str, Any] = json.loads(files["manifest.json"])
    if (found := manifest.get("format", 1)) > NEWEST_FORMAT:
        sys.exit(f"the manifest is of format {found}, but this program reads formats up to {NEWEST_FORMAT}")
    for name, facts in manifest["files"].items():
        if hashlib.sha256(files.get(name, b"")).hexdigest() != facts["sha256"]:
            sys.exit(f"{name} is not the file in the manifest: fetch the artifact again")
    kernels = [manifest["kernel"], *(launch["kernel"] for launch in manifest.get("attentions", ()))]
    if any(kernel and kernel["cubin"] is None for kernel in kernels):
        sys.exit("this artifact has no cubin (it was simulated): there is nothing to run")
    return files


def to_bits(values: cupy.ndarray, dtype: str) -> cupy.ndarray:
    """float32 as fp16 or bf16, rounded to nearest even, in uint16."""
    if dtype == "fp16":
        return values.astype(cupy.float16).view(cupy.uint16)
    if dtype != "bf16":
        sys.exit(f"elements of {dtype}: this program supports fp16 and bf16")
    bits = values.astype(cupy.float32).view(cupy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(cupy.uint16)


def to_float64(bits: cupy.ndarray, dtype: str) -> cupy.ndarray:
    """The inverse of `to_bits`; fp32 does not change."""
    if dtype == "fp32":
        return bits.astype(cupy.float64)
    if dtype == "fp16":
        return bits.view(cupy.float16).astype(cupy.float64)
    if dtype == "bf16":
        return (bits.astype(cupy.uint32) << 16).view(cupy.float32).astype(cupy.float64)
    sys.exit(f"elements of {dtype}: this program supports fp16, bf16 and fp32")


def activate(z: cupy.ndarray, activation: str) -> cupy.ndarray:
    """The manifest's activations; gelu is the tanh form."""
    if activation == "identity":
        return z
    if activation == "relu":
        return cupy.maximum(z, 0)
    if activation == "gelu":
        return 0.5 * z * (1 + cupy.tanh(0.7978845608028654 * (z + 0.044715 * z**3)))
    if activation == "silu":
        return z / (1 + cupy.exp(-z))
    sys.exit(f"the activation {activation}: this program supports identity, relu, gelu and silu")


def random_tensors(manifest: dict[str, Any]) -> dict[str, cupy.ndarray]:
    """Random inputs, row scales in [0.5, 2), and NaN where the kernel will write."""
    random = cupy.random.default_rng(7)
    tensors = {}
    for tensor in manifest["tensors"]:
        if tensor["role"] in ("intermediate", "output"):
            tensors[tensor["name"]] = cupy.full(tensor["shape"], 0x7FFF, cupy.uint16)
        elif tensor["role"] in ("lengths", "pages"):
            tensors[tensor["name"]] = cupy.zeros(tensor["shape"], cupy.int32)
        elif tensor["role"] == "frequencies":
            (half,) = tensor["shape"]
            tensors[tensor["name"]] = (500_000.0 ** (-cupy.arange(half) / half)).astype(cupy.float32)
        elif tensor["role"] == "row_scale":
            tensors[tensor["name"]] = 0.5 + 1.5 * random.random(tensor["shape"], dtype=cupy.float32)
        elif tensor["role"] == "squares":
            tensors[tensor["name"]] = cupy.full(tensor["shape"], cupy.nan, cupy.float32)
        elif tensor["role"] == "input_squares":
            rows = to_float64(tensors[tensor["name"].removesuffix(".squares")], manifest["workload"]["dtype"])
            tensors[tensor["name"]] = cupy.zeros(tensor["shape"], cupy.float32)
            tensors[tensor["name"]][: rows.shape[0]] = (rows**2).sum(axis=1)
        elif tensor["role"] not in ("input", "weight", "bias", "residual", "cache"):
            sys.exit(f"{tensor['name']} has the role {tensor['role']}, which this program does not support")
        else:
            scale = tensor["shape"][-1] ** -0.5 if tensor["role"] == "weight" else 1.0
            values = random.standard_normal(tensor["shape"], dtype=cupy.float32) * cupy.float32(scale)
            tensors[tensor["name"]] = to_bits(values, tensor["dtype"])
    return tensors


def expected(op: dict[str, Any], values: dict[str, cupy.ndarray]) -> cupy.ndarray:
    """C = act(s A W^T + bias) + R; if gated, the activation is applied to the upper half of W, which multiplies the
    lower half."""
    name = op["name"]
    z = values[op["source"]] @ values[f"{name}.w"].T
    if op.get("row_scale"):
        z *= values[f"{name}.row_scale"][:, None]
    if op.get("norm"):
        z /= cupy.sqrt((values[op["norm"]] ** 2).mean(axis=1) + op["eps"])[:, None]
    if op["bias"]:
        z += values[f"{name}.bias"]
    if op.get("gated"):
        z = activate(z[:, : op["n"]], op["activation"]) * z[:, op["n"] :]
    else:
        z = activate(z, op["activation"])
    return z + values[op.get("residual_source") or f"{name}.residual"] if op.get("residual") else z


def rel_error(manifest: dict[str, Any], tensors: dict[str, cupy.ndarray]) -> float:
    """The worst ||out - reference|| / ||reference|| of all ops, against float64."""
    dtypes = {tensor["name"]: tensor["dtype"] for tensor in manifest["tensors"]}
    values = {name: to_float64(data, dtypes[name]) for name, data in tensors.items()}
    wanted = {op["name"]: expected(op, values) for op in manifest["workload"]["ops"]}
    return worst_of(
        float(cupy.linalg.norm(values[name] - want) / cupy.linalg.norm(want)) for name, want in wanted.items()
    )


def worst_of(errors: Iterable[float]) -> float:
    """The maximum; NaN if any value is NaN."""
    worst = 0.0
    for error in errors:
        if math.isnan(error):
            return error
        worst = max(worst, error)
    return worst


def main() -> None:
    """Runs the kernel three times on random data and checks it."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).exists():
        sys.exit("pass the zip of an artifact, or the folder of its files")
    artifact = Artifact(sys.argv[1])
    manifest = artifact.manifest
    if manifest.get("own_launches"):
        sys.exit("this artifact has an op of another package: run it with tuner.runtime.load_artifact")
    if manifest.get("attentions"):
        sys.exit("this artifact has an attention: run it with run_attention.py, which gives it a cache and lengths")
    if any(op.get("rotary") for op in manifest["workload"]["ops"]):
        sys.exit("this artifact writes to a cache: run it with run_attention.py, which gives it one and lengths")
    tensors = random_tensors(manifest)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    for _ in range(3):  # no reset in between, since the counters define epochs
        artifact.run(tensors, stream)
    stream.synchronize()
    error = rel_error(manifest, tensors)
    limit = MAX_REL_ERROR[manifest["workload"]["dtype"]]
    print(f"{manifest['plan_kind']}: {manifest['schedule_in_words']}")
    print(f"relative error {error:.2e}, maximum {limit:.0e}")
    if not error <= limit:
        sys.exit("the numbers are wrong")


if __name__ == "__main__":
    main()
