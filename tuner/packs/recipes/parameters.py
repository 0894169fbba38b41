"""The parameter of a launch, packed in a manifest's layout."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

#: Bytes of the plan that the parameter contains by value.
_HEADER_BYTES = 64

Json = Mapping[str, Any]
#: Roles of tensors whose first dimension is the rows of a launch.
_OF_ROWS = ("input", "residual", "row_scale", "output")


def most_rows(manifest: Json) -> int:
    """Maximum rows of an artifact that can be launched for fewer rows than it was made for; 0 if its rows are fixed."""
    rows = manifest.get("rows", {"min": 0, "max": 0})
    return int(rows["max"]) if rows["min"] < rows["max"] else 0


def has_rows(manifest: Json, tensor: Json) -> bool:
    """Whether a tensor's first dimension is the rows of a launch, which may be fewer than in its shape."""
    return tensor.get("role") in _OF_ROWS and 0 < most_rows(manifest) == tensor["shape"][0]


def is_of_weights(recipe: Json) -> bool:
    """Whether a tensor map describes weights, the only operand without a dimension of rows."""
    return str(recipe["name"]).endswith(".w_map")


def with_rows(recipe: Json, rows: int) -> Json:
    """A tensor map of a product for `rows` rows, which are the second dimension of an input or output."""
    if rows == 0 or is_of_weights(recipe):
        return recipe
    columns, _, *others = recipe["dims"]
    return {**recipe, "dims": [columns, rows, *others]}


def pack_product(
    manifest: Json,
    launch: Json,
    addresses: Mapping[str, int],
    own: Mapping[str, int],
    header: bytes,
    encode: Callable[[Json], bytes],
    rows: int = 0,
) -> bytes:
    """The parameter of a launch of products. `addresses` has the tensors' addresses by name, 0 for missing ones; `own`
    has those of `words` and `workspace`; `header` is the beginning of the plan; `encode` makes a tensor map from its
    recipe; `rows` is 0 for the number that it was made for."""
    layout, ops = manifest["parameter"], {op["name"]: op for op in manifest["workload"]["ops"]}
    maps = {recipe["name"]: recipe for recipe in launch["tensor_maps"]}
    plain = {
        "spin_limit_cycles": layout["spin_limit_cycles"],
        "is_dependent": int(launch["programmatic_dependent_launch"]),
        "is_second": int(launch["workspace"]["is_second"]),
        "trace": 0,
        **own,
    }
    buffer = bytearray(layout["size_bytes"])
    for field in layout["fields"]:
        name, kind = field["name"], field["type"]
        op, _, member = name.partition(".")
        if name in plain:
            value: Any = plain[name]
        elif name == "plan_header":
            value = header[:_HEADER_BYTES]
        elif name == "first_tasks":
            value = bytes.fromhex(launch["first_tasks"])
        elif member.endswith("_map"):
            value = encode(with_rows(maps[name], rows))
        elif rows and member == "m":
            value = rows
        elif kind == "int32":
            value = ops[op][member] if member in ops[op] else int(field["meaning"])
        elif kind == "float32":
            value = float(field["meaning"])
        else:
            tensor = field.get("tensor") or {"a": ops[op]["source"], "c": op}.get(member, name)
            value = addresses.get(tensor, 0)
        _put(buffer, field["offset"], kind, value)
    return bytes(buffer)


def pack_fields(
    parameter: Json,
    addresses: Mapping[str, int],
    own: Mapping[str, int | bytes],
    encode: Callable[[str], bytes],
) -> bytes:
    """The parameter of a kernel whose manifest has the tensor or value of each field, as for an attention. `own` are
    the launch's own fields; `encode` makes the tensor map of that name."""
    buffer = bytearray(parameter["size_bytes"])
    for field in parameter["fields"]:
        name, kind = field["name"], field["type"]
        if name in own:
            value: Any = own[name]
        elif name.endswith("_map"):
            value = encode(name)
        elif kind == "pointer":
            value = addresses[field["tensor"]] if field.get("tensor") else 0
        else:
            value = field["value"]
        _put(buffer, field["offset"], kind, value)
    return bytes(buffer)


def of_each_op(manifest: Json) -> list[list[dict[str, Any]]]:
    """The recipes of ops from other packages, in order, grouped by op."""
    found: dict[str, list[dict[str, Any]]] = {}
    for recipe in manifest.get("own_launches", ()):
        found.setdefault(recipe["op"], []).append(recipe)
    return list(found.values())


def of_launch(recipe: Json, workspace: int, file_at: Callable[[str], int]) -> dict[str, int | bytes]:
    """The launch's own fields, for an op from another package: parts of the workspace, files on the device, and
    bytes."""
    found: dict[str, int | bytes] = {}
    for field in recipe["parameter"]["fields"]:
        if "room" in field:
            found[field["name"]] = workspace + field["room"]
        elif "file" in field:
            found[field["name"]] = file_at(field["file"])
        elif field["type"].startswith("bytes[") and "value" in field:
            found[field["name"]] = bytes.fromhex(field["value"])
    return found


def _put(buffer: bytearray, offset: int, kind: str, value: Any) -> None:
    if isinstance(value, bytes):
        buffer[offset : offset + len(value)] = value
    else:
        struct.pack_into({"pointer": "<Q", "int64": "<q", "int32": "<i", "float32": "<f"}[kind], buffer, offset, value)
