"""Runs a fetched attention, and the product behind it, with its zip, CuPy for arrays and ctypes on libcuda alone.

tuner-client fetch best --job JOB --format zip --output best.zip
python examples/run_attention.py best.zip
python examples/run_attention.py best.zip --lengths 512,17,0,300

Everything about the launches is read from manifest.json; tuner itself is not imported. `run_artifact.py` beside it has
what both have in common.
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
)

NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
#: Launches that follow each other: counters only grow, no launch resets them.
NUM_RUNS = 3


class AttentionArtifact(Artifact):
    """A loaded zip: the attentions' kernels, and the products' behind them."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._attentions = [Attention(self, recipe) for recipe in self.manifest["attentions"]]

    def run(self, tensors: dict[str, cupy.ndarray], stream: cupy.cuda.Stream) -> None:
        """Enqueues each attention in front of what reads it; `tensors` holds every tensor that the manifest names."""
        for attention in self._attentions:
            attention.run(tensors, stream)
        super().run(tensors, stream)


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
            ValueError: a length is beyond what the plan was made for.
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
                struct.pack_into("<f" if kind == "float32" else "<i", buffer, offset, field["value"])
        return bytes(buffer)


def attended(op: dict[str, Any], dtype: str, tensors: dict[str, cupy.ndarray]) -> cupy.ndarray:
    """softmax(scale Q K^T) V in float64, [rows, columns]; zeros where a query sees no token."""
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
    """A sequence's keys, or values, [KV heads, tokens, head_dim]: of a paged cache by the table."""
    cache = tensors[f"{op['name']}.{of}"]
    if "page_tokens" not in op:
        return cache[sequence]
    pages = cache[tensors[f"{op['name']}.pages"][sequence]]
    heads_first = pages if op.get("heads_first", True) else pages.swapaxes(1, 2)
    return heads_first.swapaxes(0, 1).reshape(op["kv_heads"], -1, op["head_dim"])


def rel_error(manifest: dict[str, Any], tensors: dict[str, cupy.ndarray]) -> float:
    """The worst ||out - reference|| / ||reference|| of all ops, against float64."""
    dtype, worst = manifest["workload"]["dtype"], 0.0
    for op in manifest["workload"]["ops"]:
        if op.get("op") == "attention":
            want = attended(op, dtype, tensors)
        else:
            names = [
                tensor["name"] for tensor in manifest["tensors"] if tensor["role"] not in ("cache", "lengths", "pages")
            ]
            want = expected(op, {name: to_float64(tensors[name], dtype) for name in names})
        norm = float(cupy.linalg.norm(want)) or math.inf
        error = float(cupy.linalg.norm(to_float64(tensors[op["name"]], dtype) - want)) / norm
        worst = error if not error <= worst else worst  # NaN stays
    return worst


def main() -> None:
    """Runs the launches three times on random data and checks them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", help="the zip of an artifact, or the folder of its files")
    parser.add_argument("--lengths", help="of each sequence, with commas between; drawn without it")
    options = parser.parse_args()
    artifact = AttentionArtifact(options.artifact)
    manifest = artifact.manifest
    if manifest.get("launch_order"):
        sys.exit("this artifact has products in front of its attention: run it with tuner.runtime.load_artifact")
    tensors = random_tensors(manifest)
    draw_lengths(manifest, tensors, options.lengths)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    for _ in range(NUM_RUNS):
        artifact.run(tensors, stream)
    stream.synchronize()
    error, limit = rel_error(manifest, tensors), MAX_REL_ERROR[manifest["workload"]["dtype"]]
    print(f"{manifest['plan_kind']}: {manifest['schedule_in_words']}")
    print(f"relative error {error:.2e}, at most {limit:.0e} is right")
    if not error <= limit:
        sys.exit("the numbers are wrong")


def draw_lengths(manifest: dict[str, Any], tensors: dict[str, cupy.ndarray], asked: str | None) -> None:
    """Fills in the lengths of each attention: those that are asked for, or from an empty sequence to the longest. Pages
    go to sequences in random order."""
    for recipe in manifest["attentions"]:
        given = tensors[recipe["lengths"]["tensor"]]
        lengths = cupy.random.default_rng(3).integers(0, recipe["lengths"]["max"] + 1, given.shape)
        lengths[0] = recipe["lengths"]["max"]
        if asked:
            lengths = cupy.asarray(json.loads(f"[{asked}]"))
            if lengths.shape != given.shape:
                sys.exit(f"{lengths.size} lengths for {given.size} sequences")
        given[:] = lengths
        if "pages" in recipe:
            table = tensors[recipe["pages"]["tensor"]]
            table[...] = cupy.random.permutation(recipe["pages"]["num_pages"]).reshape(table.shape)


if __name__ == "__main__":
    main()
