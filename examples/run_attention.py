"""Runs a fetched attention or layer, and the products around it, with only its zip, CuPy and ctypes on libcuda.

tuner-client fetch best --job JOB --format zip --output best.zip
python examples/run_attention.py best.zip
python examples/run_attention.py best.zip --lengths 512,17,0,300

Everything about the launches, and their order, is read from manifest.json; tuner itself is not imported. If a product
rotates queries and keys and writes to a cache, the rows of new tokens are NaN before the launch, and are also checked.
`run_artifact.py` in the same folder has the code that both share.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import struct
import sys
from typing import Any

from run_artifact import (
    MAX_DYNAMIC_SHARED_SIZE_BYTES,
    MAX_REL_ERROR,
    PROGRAMMATIC_STREAM_SERIALIZATION,
    Artifact,
    LaunchAttribute,
    LaunchConfig,
    cupy,
    expected,
    random_tensors,
    to_float64,
    worst_of,
)

NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
#: Several consecutive launches, because counters only grow, and no launch resets them.
NUM_RUNS = 3
#: Formats of a field that holds a value, by its type.
FORMATS = {"float32": "<f", "int32": "<i", "int64": "<q"}


class AttentionArtifact(Artifact):
    """A loaded zip: the kernels of the attentions, and of the products around them."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._attentions = [Attention(self, recipe) for recipe in self.manifest.get("attentions", ())]

    def run(self, tensors: dict[str, cupy.ndarray], stream: cupy.cuda.Stream) -> None:
        """Enqueues all launches: in the manifest's order or, if it has none, the attentions first. `tensors` holds
        every tensor that the manifest names."""
        order = self.manifest.get("launch_order")
        if order is None:
            for attention in self._attentions:
                attention.run(tensors, stream)
            super().run(tensors, stream)
            return
        for one in order:
            if one["list"] == "attentions":
                self._attentions[one["index"]].run(tensors, stream)
            else:
                self.launch_products(one["index"], tensors, stream)


class Attention:
    """One attention's kernel on the card, with its plan and its workspace."""

    def __init__(self, artifact: AttentionArtifact, recipe: dict[str, Any]) -> None:
        self._artifact, self._recipe = artifact, recipe
        kernel = recipe["kernel"]
        self._module, self._function = artifact.load(kernel["cubin"], kernel["name"])
        artifact.set_attribute(self._function, MAX_DYNAMIC_SHARED_SIZE_BYTES, recipe["dynamic_smem_bytes"])
        if recipe["allows_non_portable_cluster"]:
            artifact.set_attribute(self._function, NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
        self._tasks, self._queues = (
            cupy.asarray(bytearray(artifact.files[recipe[name]])) for name in ("tasks", "queues")
        )
        self._workspace = cupy.zeros(recipe["workspace"]["bytes"], cupy.uint8)

    def run(self, tensors: dict[str, cupy.ndarray], stream: cupy.cuda.Stream) -> None:
        """Enqueues one launch.

        Raises:
            a length exceeds the maximum of the plan.
        """
        recipe = self._recipe
        lengths = tensors[recipe["lengths"]["tensor"]].get().tolist()
        if wrong := [length for length in lengths if not 0 <= length <= recipe["lengths"]["max"]]:
            raise ValueError(f"a length of {wrong[0]}: the plan was made for 0 to {recipe['lengths']['max']} tokens")
        if "pages" in recipe:
            self._check_pages(tensors[recipe["pages"]["tensor"]].get(), lengths)
        parameter = ctypes.create_string_buffer(self._parameter(tensors))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        attributes = [LaunchAttribute(id=PROGRAMMATIC_STREAM_SERIALIZATION, value=1)]
        config = LaunchConfig(
            grid=tuple(recipe["grid"]),
            block=tuple(recipe["block"]),
            dynamic_smem_bytes=recipe["dynamic_smem_bytes"],
            stream=stream.ptr,
            attributes=(LaunchAttribute * 1)(*attributes),
            num_attributes=int(recipe["programmatic_dependent_launch"]),
        )
        self._artifact.launch(config, self._function, pointers)

    def _check_pages(self, table: Any, lengths: list[int]) -> None:
        pages = self._recipe["pages"]
        for numbers, length in zip(table, lengths, strict=True):
            for number in numbers[: -(-length // pages["page_tokens"])].tolist():
                if not 0 <= number < pages["num_pages"]:
                    raise ValueError(f"page {number}: the cache has 0 to {pages['num_pages'] - 1}")

    def _parameter(self, tensors: dict[str, cupy.ndarray]) -> bytes:
        """The kernel's one by-value struct, field by field as the manifest lays it out."""
        recipe, workspace = self._recipe, self._workspace.data.ptr
        own = {
            "tasks": self._tasks.data.ptr,
            "queues": self._queues.data.ptr,
            "arrivals": workspace + recipe["workspace"]["arrivals"],
            "partials": workspace + recipe["workspace"]["partials"],
            "refused": workspace + recipe["workspace"]["refused"],
            "trace": 0,
        }
        if record := recipe["workspace"].get("abort_record"):  # missing if waits are not bounded
            own["abort"] = workspace + record["offset"]
        buffer = bytearray(recipe["parameter"]["size_bytes"])
        for field in recipe["parameter"]["fields"]:
            name, offset, kind = field["name"], field["offset"], field["type"]
            if name.endswith("_map"):
                buffer[offset : offset + 128] = self._artifact.tensor_map(recipe, name, tensors)
            elif name == "first_tasks":
                first = bytes.fromhex(recipe["first_tasks"])
                buffer[offset : offset + len(first)] = first
            elif kind == "pointer":
                tensor = field.get("tensor", "")
                address = tensors[tensor].data.ptr if tensor else own.get(name, 0)
                struct.pack_into("<Q", buffer, offset, address)
            else:
                struct.pack_into(FORMATS[kind], buffer, offset, field["value"])
        return bytes(buffer)


def attended(op: dict[str, Any], dtype: str, tensors: dict[str, cupy.ndarray]) -> cupy.ndarray:
    """softmax(scale Q K^T) V in float64, [rows, columns]; zeros if a query sees no token."""
    name, heads, new_tokens = op["name"], op["kv_heads"] * op["query_heads"], op["new_tokens"]
    scale = op.get("scale") or op["head_dim"] ** -0.5
    q = to_float64(tensors[op["source"]], dtype).reshape(
        op["sequences"], new_tokens, op["kv_heads"], -1, op["head_dim"]
    )
    out = cupy.zeros(q.shape)
    for sequence, length in enumerate(tensors[f"{name}.lengths"].get().tolist()):
        for token in range(new_tokens):
            seen = max(0, length - new_tokens + 1 + token)
            if seen == 0:
                continue
            first = max(0, seen - op.get("window", seen))
            keys, values = (
                to_float64(context(op, of, tensors, sequence)[:, first:seen], dtype) for of in ("keys", "values")
            )
            scores = scale * cupy.matmul(q[sequence, token], keys.swapaxes(1, 2))
            if cap := op.get("soft_cap"):
                scores = cap * cupy.tanh(scores / cap)
            weights = cupy.exp(scores - scores.max(axis=2, keepdims=True))
            out[sequence, token] = cupy.matmul(weights / weights.sum(axis=2, keepdims=True), values)
    return out.reshape(op["sequences"] * new_tokens, heads * op["head_dim"])


def context(op: dict[str, Any], of: str, tensors: dict[str, cupy.ndarray], sequence: int) -> cupy.ndarray:
    """A sequence's keys or values, [KV heads, tokens, head_dim]; in a paged cache, by its table."""
    cache = tensors[f"{op['name']}.{of}"]
    if "page_tokens" not in op:
        return cache[sequence]
    pages = cache[tensors[f"{op['name']}.pages"][sequence]]
    heads_first = pages if op.get("heads_first", True) else pages.swapaxes(1, 2)
    return heads_first.swapaxes(0, 1).reshape(op["kv_heads"], -1, op["head_dim"])


def new_rows(
    op: dict[str, Any], manifest: dict[str, Any], tensors: dict[str, cupy.ndarray]
) -> list[tuple[int, int, dict[str, Any]]]:
    """The rows of an op that writes to a cache: each row that is stored, its position, and the address of its keys
    and values."""
    sizes, cache = op["rotary"], cache_of(op, manifest)
    lengths, new_tokens, found = tensors[f"{cache}.lengths"].get().tolist(), sizes["new_tokens"], []
    for row in range(op["m"]):
        sequence, token = divmod(row, new_tokens)
        at = lengths[sequence] - new_tokens + token
        if 0 <= at < sizes["max_length"]:
            place: tuple[Any, ...] = (sequence, slice(None), at)
            if page_tokens := sizes.get("page_tokens"):
                page, line = int(tensors[f"{cache}.pages"][sequence, at // page_tokens]), at % page_tokens
                place = (page, slice(None), line) if sizes.get("heads_first", True) else (page, line)
            places = {what: tensors[f"{cache}.{what}"][place] for what in ("keys", "values")}
            found.append((row, at, places))
    return found


def cache_of(op: dict[str, Any], manifest: dict[str, Any]) -> str:
    """The prefix of the tensors of the cache that an op writes to: its own, or that of the following attention."""
    field = next(one for one in manifest["parameter"]["fields"] if one["name"] == f"{op['name']}.keys")
    return str(field["tensor"]).removesuffix(".keys")


def turned(
    op: dict[str, Any], z: cupy.ndarray, frequencies: cupy.ndarray, positions: cupy.ndarray
) -> tuple[cupy.ndarray, cupy.ndarray, cupy.ndarray]:
    """Queries, keys and values [rows, heads, head_dim] of a product's rows, which have the first halves of all heads
    first. Angles are fp32, as in every kernel."""
    heads, kv_heads, half = op["rotary"]["heads"], op["rotary"]["kv_heads"], op["rotary"]["head_dim"] // 2
    first, second = z.reshape(len(z), 2, -1, half).swapaxes(0, 1)
    angles = (positions.astype(cupy.float32)[:, None] * frequencies).astype(cupy.float64)[:, None]
    cos, sin = cupy.cos(angles), cupy.sin(angles)
    pairs = cupy.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2)
    values = cupy.concatenate([first, second], axis=2)[:, heads + kv_heads :]
    return pairs[:, :heads], pairs[:, heads : heads + kv_heads], values


def error_of(found: cupy.ndarray, want: cupy.ndarray) -> float:
    """||found - want|| / ||want||."""
    return float(cupy.linalg.norm(found - want)) / (float(cupy.linalg.norm(want)) or math.inf)


def turned_error(
    op: dict[str, Any], manifest: dict[str, Any], tensors: dict[str, cupy.ndarray], z: cupy.ndarray
) -> float:
    """The maximum error of queries, and of the keys and values that a launch wrote to the cache."""
    dtype, new_tokens = manifest["workload"]["dtype"], op["rotary"]["new_tokens"]
    lengths, rows = tensors[f"{cache_of(op, manifest)}.lengths"], cupy.arange(op["m"])
    positions = lengths[rows // new_tokens] - new_tokens + rows % new_tokens
    queries, keys, values = turned(op, z, tensors[f"{op['name']}.frequencies"], positions)
    errors = [error_of(to_float64(tensors[op["name"]], dtype), queries.reshape(op["m"], -1))]
    written = new_rows(op, manifest, tensors)
    for what, want in (("keys", keys), ("values", values)) if written else ():
        found = cupy.stack([to_float64(places[what], dtype) for _, _, places in written])
        errors.append(error_of(found, want[[row for row, _, _ in written]]))
    return worst_of(errors)


def rel_error(manifest: dict[str, Any], tensors: dict[str, cupy.ndarray]) -> float:
    """The worst ||out - reference|| / ||reference|| of all ops, against float64."""
    dtype, errors = manifest["workload"]["dtype"], []
    apart = ("cache", "lengths", "pages")
    dtypes = {tensor["name"]: tensor["dtype"] for tensor in manifest["tensors"] if tensor["role"] not in apart}
    for op in manifest["workload"]["ops"]:
        if op.get("op") == "attention":
            errors.append(error_of(to_float64(tensors[op["name"]], dtype), attended(op, dtype, tensors)))
            continue
        want = expected(op, {name: to_float64(tensors[name], of) for name, of in dtypes.items()})
        if op.get("rotary"):
            errors.append(turned_error(op, manifest, tensors, want))
        else:
            errors.append(error_of(to_float64(tensors[op["name"]], dtype), want))
    return worst_of(errors)


def main() -> None:
    """Runs the launches three times on random data and checks them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", help="the zip of an artifact, or the folder of its files")
    parser.add_argument("--lengths", help="length of each sequence, comma-separated (default: random)")
    options = parser.parse_args()
    artifact = AttentionArtifact(options.artifact)
    manifest = artifact.manifest
    tensors = random_tensors(manifest)
    draw_lengths(manifest, tensors, options.lengths)
    for op in manifest["workload"]["ops"]:
        for _, _, places in new_rows(op, manifest, tensors) if op.get("rotary") else ():
            for line in places.values():
                line[...] = 0x7FFF  # NaN, which reveals a read before the write
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    for _ in range(NUM_RUNS):
        artifact.run(tensors, stream)
    stream.synchronize()
    error, limit = rel_error(manifest, tensors), MAX_REL_ERROR[manifest["workload"]["dtype"]]
    print(f"{manifest['plan_kind']}: {manifest['schedule_in_words']}")
    print(f"relative error {error:.2e}, at most {limit:.0e} is allowed")
    if not error <= limit:
        sys.exit("the numbers are wrong")


def draw_lengths(manifest: dict[str, Any], tensors: dict[str, cupy.ndarray], asked: str | None) -> None:
    """Fills in the lengths of each cache: those that are requested, or from an empty sequence to the longest. Pages go
    to sequences in random order."""
    for op in manifest["workload"]["ops"]:
        sizes = op if op.get("op") == "attention" else op.get("rotary")
        if sizes is None:
            continue
        cache = op["name"] if op.get("op") == "attention" else cache_of(op, manifest)
        given = tensors[f"{cache}.lengths"]
        lengths = cupy.random.default_rng(3).integers(0, sizes["max_length"] + 1, given.shape)
        lengths[0] = sizes["max_length"]
        if asked:
            lengths = cupy.asarray(json.loads(f"[{asked}]"))
            if lengths.shape != given.shape:
                sys.exit(f"{lengths.size} lengths for {given.size} sequences")
        given[:] = lengths
    for recipe in (*manifest.get("attentions", ()), manifest["parameter"] or {}):
        if "pages" in recipe:
            table = tensors[recipe["pages"]["tensor"]]
            table[...] = cupy.random.permutation(recipe["pages"]["num_pages"]).reshape(table.shape)


if __name__ == "__main__":
    main()
