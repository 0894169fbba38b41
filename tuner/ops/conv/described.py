"""Networks that are described by their layers: blocks of convolutions and poolings, each of which is a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from re import fullmatch
from typing import Any

from tuner.core.problem.activation import Activation, canonical
from tuner.core.problem.asked import pair_of
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.ops.codec import MOST_CHARACTERS, TEXT
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.errors import InvalidInput
from tuner.ops.conv.images import ImageOp
from tuner.ops.conv.op import ConvOp
from tuner.ops.conv.pooling.op import Function, PoolingOp

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """A convolution, with PyTorch's names."""

    name: str
    out_channels: int
    kernel_size: int
    stride: int = 1
    #: Half of a filter by default.
    padding: int | None = None
    bias: bool = True
    activation: str = "identity"
    #: Its input: an earlier layer, or ``x``; by default the layer before it.
    source: str = ""
    #: The image that is added before the activation: an earlier layer, or any other name for an input.
    add: str = ""
    groups: int = 1
    dilation: int = 1


@dataclass(frozen=True, kw_only=True)
class _Pool:
    """A pooling: its padding does not count."""

    name: str
    #: ``max`` or ``average``.
    pool: str
    kernel_size: int
    #: The window's size by default, as in PyTorch.
    stride: int | None = None
    padding: int = 0
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class _Block:
    """Layers that are tuned together, and their inputs."""

    name: str
    height: int
    width: int
    in_channels: int
    layers: Sequence[Any]


def chains_of(description: Mapping[str, Any], images: int, dtype: str | None = None) -> list[tuple[str, Json]]:
    """The name of each block, and its convolutions for `images` images as `POST /jobs` takes them.

    Raises:
        InvalidInput: names the path of the invalid value.
    """
    known = {"kind", "name", "dtype", "blocks"}
    if odd := sorted(set(description) - known):
        raise InvalidInput(odd[0], "is not a field of a network", f"give {', '.join(sorted(known))}")
    blocks, given = description.get("blocks"), dtype or description.get("dtype", "fp16")
    if not isinstance(blocks, list) or not blocks:
        raise InvalidInput("blocks", "is not a list of blocks", "use one object for each")
    if given not in (str(Dtype.FP16), str(Dtype.BF16)):
        raise InvalidInput("dtype", f"is {given!r}", "give fp16 or bf16")
    found = []
    for place, block in enumerate(blocks):
        where = f"blocks[{place}]"
        read = _read(_Block, block, where)
        ops = _ops(read, images, where)
        try:
            made = Workload(kind=WorkloadKind.CHAIN, ops=ops, dtype=Dtype(given))
        except InvalidInput as error:
            raise _placed(error, read, where) from error
        found.append((read.name, pair_of(made)))
    return found


def _ops(block: _Block, images: int, where: str) -> tuple[ImageOp, ...]:
    """The ops of a block; the output of each op determines the image size of the ops that read it."""
    shapes = {"x": (images, block.height, block.width, block.in_channels)}
    ops, before = list[ImageOp](), "x"
    if not isinstance(block.layers, list) or not block.layers:
        raise InvalidInput(f"{where}.layers", "is not a list of layers", "use one object for each")
    for place, given in enumerate(block.layers):
        own = f"{where}.layers[{place}]"
        layer = _read(_Pool if isinstance(given, dict) and "pool" in given else _Layer, given, own)
        for field in ("name", *(one for one in ("source", "add") if getattr(layer, one, ""))):
            if not (fullmatch(TEXT, name := getattr(layer, field)) and len(name) <= MOST_CHARACTERS):
                remedy = f"begin with a letter, and use letters, digits, _, . and -, at most {MOST_CHARACTERS}"
                raise InvalidInput(f"{own}.{field}", f"is {name!r}", remedy)
        source = layer.source or before
        if source not in shapes:
            raise InvalidInput(f"{own}.source", f"is {source!r}", f"give one of {', '.join(shapes)}")
        if layer.name in shapes:
            raise InvalidInput(
                f"{own}.name", f"is {layer.name!r}, which another layer is also called", "give each layer a unique name"
            )
        try:
            op = _op(layer, source, shapes[source], own)
        except InvalidInput as error:
            of_block = _OF_BLOCK.get(error.field) if source == "x" else None
            renamed = f"{own}.{_AS_GIVEN.get(error.field, error.field)}"
            is_path = error.field == "images" or error.field.startswith(own)  # their number is given beside the file
            field = f"{where}.{of_block}" if of_block else error.field if is_path else renamed
            raise InvalidInput(field, error.problem, error.remedy) from error
        ops.append(op)
        shapes[layer.name], before = op.out_shape, layer.name
    return tuple(ops)


def _op(layer: _Layer | _Pool, source: str, shape: tuple[int, int, int, int], own: str) -> ImageOp:
    """The op of a layer at the path `own`, which reads images of this shape.

    Raises:
        InvalidInput: with the name of an op's field, or with the path of a name that is not known.
    """
    read = dict(zip(("images", "height", "width", "channels"), shape, strict=True))
    plain: Json = {"name": layer.name, "source": source, "kernel": layer.kernel_size, **read}
    if isinstance(layer, _Pool):
        stride = layer.kernel_size if layer.stride is None else layer.stride
        function = _named(Function, layer.pool, layer.pool, f"{own}.pool")
        return PoolingOp(**plain, stride=stride, padding=layer.padding, function=function)
    activation = _named(Activation, canonical(layer.activation), layer.activation, f"{own}.activation")
    return ConvOp(
        **plain,
        filters=layer.out_channels,
        stride=layer.stride,
        padding=layer.kernel_size // 2 if layer.padding is None else layer.padding,
        activation=activation,
        bias=layer.bias,
        residual_source=layer.add,
        groups=layer.groups,
        dilation=layer.dilation,
    )


def _named(names: type[StrEnum], value: str, given: str, path: str) -> Any:
    try:
        return names(value)
    except ValueError as error:
        raise InvalidInput(path, f"is {given!r}", f"give one of {', '.join(names)}") from error


#: Fields of an op and their names in a description, for a layer and for the images that a block reads.
_AS_GIVEN = {"kernel": "kernel_size", "filters": "out_channels", "residual_source": "add"}
_OF_BLOCK = {"height": "height", "width": "width", "channels": "in_channels"}


def _placed(error: InvalidInput, block: _Block, where: str) -> InvalidInput:
    """An error that names an op, with the path of the op's layer."""
    name, _, field = error.field.partition(".")
    places = [place for place, layer in enumerate(block.layers) if layer["name"] == name]
    path = f"{where}.layers[{places[0]}].{_AS_GIVEN.get(field, field)}" if field and places else f"{where}.layers"
    return InvalidInput(path, error.problem, error.remedy)


def _read(cls: type[Any], given: Any, where: str) -> Any:
    """Reads a `_Layer` or a `_Block` from JSON, with type checks."""
    if not isinstance(given, dict):
        raise InvalidInput(where, "is not a JSON object", f"give {', '.join(one.name for one in fields(cls))}")
    known = {one.name: one for one in fields(cls)}
    for name, value in given.items():
        if name not in known:
            raise InvalidInput(f"{where}.{name}", "is no field", f"give {', '.join(known)}")
        wanted = str(known[name].type).partition(" ")[0]
        right = {"str": str, "int": int, "bool": bool}.get(wanted, object)
        if not isinstance(value, right) or (right is int and isinstance(value, bool)):
            raise InvalidInput(f"{where}.{name}", f"is {value!r}", f"give a value of type {wanted}")
    missing = [name for name, one in known.items() if one.default is MISSING and name not in given]
    if missing:
        raise InvalidInput(f"{where}.{missing[0]}", "is missing", "give it")
    return cls(**given)
