"""From a model's Hugging Face config to the decode attentions of its layers, and to whole decoder blocks starting
with qkv, for one tensor-parallel rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.client.models.model_families import FAMILIES
from tuner.client.models.models import QUANTISED, dense_language_model, dtype_of, ffn_shapes, size_of
from tuner.errors import InvalidInput
from tuner.ops.attention.model_layers import LayerAttention, layer_attentions, number_of
from tuner.ops.attention.op import ATTENTION

Json = dict[str, Any]

#: Types of rotary embeddings whose frequencies do not change with the length, and that scale nothing.
_PLAIN_ROTARY = ("default", "linear", "llama3")
#: The type of a latent attention, whose cache has no heads.
_LATENT = "kv_lora_rank"
_KINDS_OF_LAYERS = ("full_attention", "sliding_attention")
REQUIRED = ("num_attention_heads",)
FIELDS = ("use_bidirectional_attention", "partial_rotary_factor", "rope_scaling", "rope_parameters")
OBJECTS = dict.fromkeys(
    ("rope_scaling", "rope_parameters", *_KINDS_OF_LAYERS),
    ("rope_type", "type", "partial_rotary_factor", *_KINDS_OF_LAYERS),
)
_WITHOUT_QKV = "tune the attention without --with-qkv, and write to the cache before it"


def counted_pairs(
    config: Mapping[str, Any],
    *,
    sequences: int,
    max_length: int,
    tp: int = 1,
    dtype: str | None = None,
    page_tokens: int | None = None,
    heads_first: bool = True,
    lengths: str = "full",
    timed_length: int | None = None,
) -> list[tuple[dict[str, Any], int]]:
    """The attentions of a decode step with their projections, as `POST /jobs` takes them, and how many layers have
    each; for one of `tp` ranks. Layers of several kinds give several attentions, in order; a window that hides nothing
    is left out.

    Heads are split over the ranks, whose projections are summed. If o_proj has a bias, the attention has no projection.

    Args:
        config: the content of the model's `config.json`.
        sequences: number of sequences per launch, >= 1.
        max_length: tokens of the longest context.
        tp: tensor-parallel ranks, >= 1.
        dtype: ``fp16`` or ``bf16``; by default the config's own.
        page_tokens: tokens per page of the cache; None if it is contiguous.
        heads_first: whether a page's heads come before its tokens.
        lengths: ``full`` or ``uniform``, the lengths at which it is timed.
        timed_length: the longest timed length, in tokens; `max_length` if it is None or larger.

    Raises:
        InvalidInput: the model has experts, is quantised, or the ranks do not divide its heads.
    """
    model, kinds = dense_language_model(config), layer_attentions(config)
    pairs = [
        {
            "kind": "attention",
            "sequences": sequences,
            "max_length": max_length,
            "heads": _of_a_rank(layer.heads, "num_attention_heads", tp),
            "kv_heads": _of_a_rank(layer.kv_heads, "num_key_value_heads", tp),
            "head_dim": layer.head_dim,
            "d_out": None if layer.out_bias else size_of(model, "hidden_size"),
            "page_tokens": page_tokens,
            **({} if heads_first else {"heads_first": False}),
            **_timed_at(lengths, timed_length, max_length),
            "window": _hiding(layer.window, max_length),
            "scale": layer.scale,
            "soft_cap": layer.soft_cap,
            "dtype": dtype or dtype_of(model),
        }
        for layer in kinds
    ]
    layers = list(zip(pairs, kinds.values(), strict=True))
    return [(pair, sum(count for other, count in layers if other == pair)) for pair in _once(pairs)]


def attention_pairs(config: Mapping[str, Any], **how: Any) -> list[dict[str, Any]]:
    """The attentions of `counted_pairs`, with the same arguments and errors."""
    return [pair for pair, _ in counted_pairs(config, **how)]


def qkv_attention_chains(
    config: Mapping[str, Any],
    *,
    sequences: int,
    max_length: int,
    tp: int = 1,
    dtype: str | None = None,
    page_tokens: int | None = None,
    heads_first: bool = True,
    lengths: str = "full",
    timed_length: int | None = None,
) -> list[dict[str, Any]]:
    """The attentions of a decode step with the ops around them, as `POST /jobs` takes them: norm, the product of
    queries, keys and values, which rotates and writes to the cache, attention, and o_proj; for one of `tp` ranks,
    between two all-reduces.

    Args: see `attention_pairs`.

    Raises:
        InvalidInput: see `attention_pairs`; or the model normalizes queries and keys, its rotary embeddings change with
            the length or rotate only a part of a head, or each rank would add the bias of o_proj.
    """
    sizes = {"max_length": max_length, "new_tokens": 1} | ({} if page_tokens is None else {"page_tokens": page_tokens})
    sizes |= {} if heads_first else {"heads_first": False}
    model = dense_language_model(config)
    _check_norms(model)
    found = [_chain(model, layer, sequences, tp, dtype or dtype_of(model), sizes) for layer in layer_attentions(config)]
    for chain in found:
        chain["ops"][1] |= _timed_at(lengths, timed_length, max_length)
    return _once(found)


def _timed_at(lengths: str, timed_length: int | None, max_length: int) -> Json:
    found: Json = {} if lengths == "full" else {"lengths": lengths}
    return found | ({"timed_length": timed_length} if timed_length is not None and timed_length < max_length else {})


def _chain(
    model: Mapping[str, Any], layer: LayerAttention, sequences: int, tp: int, dtype: str, sizes: Mapping[str, int]
) -> dict[str, Any]:
    _check_turned(layer)
    if layer.out_bias and tp > 1:
        problem = f"is {tp}, and the ranks' outputs are summed: the bias of o_proj would be added {tp} times"
        raise InvalidInput("tp", problem, "tune only the attention, and add it after the sum")
    heads = _of_a_rank(layer.heads, "num_attention_heads", tp)
    kv_heads = _of_a_rank(layer.kv_heads, "num_key_value_heads", tp)
    cache = {"heads": heads, "kv_heads": kv_heads, "head_dim": layer.head_dim, **sizes}
    window = _hiding(layer.window, sizes["max_length"])
    hidden = size_of(model, "hidden_size")
    qkv = {
        "name": "qkv",
        "source": "residual",
        "n": (heads + 2 * kv_heads) * layer.head_dim,
        "k": hidden,
        "bias": layer.qkv_bias,
        "norm": "residual",
        "eps": number_of(model, "rms_norm_eps"),
        "rotary": cache,
    }
    attention = {
        "op": "attention",
        "name": "attention",
        "source": "qkv",
        "sequences": sequences,
        **cache,
        **({} if window is None else {"window": window}),
    }
    o_proj = {
        "name": "o_proj",
        "source": "attention",
        "n": hidden,
        "k": heads * layer.head_dim,
        "bias": layer.out_bias,
    }
    return {"kind": "chain", "m": sequences, "dtype": dtype, "ops": [qkv, attention, o_proj]}


def whether_known(config: Mapping[str, Any], why: str) -> str:
    """Whether kernels support the attention of a model that is refused as a whole; `why` describes what they cannot
    compute.

    Raises:
        InvalidInput: the config does not say how many layers there are.
    """
    if config.get(_LATENT):
        return f"no attention: no kernel supports latent attention ({_LATENT})"
    layers = size_of(config, "num_hidden_layers")
    return (
        f"the attention, {why}, in {layers} layers: tune-model does not support such a model, "
        "but submit --sequences does"
    )


def remaining_pairs(
    config: Mapping[str, Any],
    *,
    sequences: int,
    max_length: int,
    tp: int = 1,
    dtype: str | None = None,
    page_tokens: int | None = None,
) -> list[tuple[Json, int]]:
    """The attention of a model that is refused as a whole, as in `counted_pairs`; without a projection if the weights
    are quantised. Other properties of its family are unknown here: each layer is assumed to read whole contexts.

    Raises:
        InvalidInput: it is a latent attention, or the ranks do not divide its heads.
    """
    if config.get(_LATENT):
        raise InvalidInput(_LATENT, "the model has latent attention, which no kernel supports", "leave out --context")
    hidden, heads = size_of(config, "hidden_size"), size_of(config, "num_attention_heads")
    is_quantised = any(config.get(name) for name in QUANTISED)
    pair = {
        "kind": "attention",
        "sequences": sequences,
        "max_length": max_length,
        "heads": _of_a_rank(heads, "num_attention_heads", tp),
        "kv_heads": _of_a_rank(int(config.get("num_key_value_heads") or heads), "num_key_value_heads", tp),
        "head_dim": int(config.get("head_dim") or hidden // heads),
        "d_out": None if is_quantised else hidden,
        "page_tokens": page_tokens,
        "dtype": dtype or dtype_of(config),
    }
    return [(pair, size_of(config, "num_hidden_layers"))]


def _of_a_rank(count: int, name: str, tp: int) -> int:
    if count % tp:
        problem = f"is {tp}, but {name} {count} is not a multiple of it"
        raise InvalidInput("tp", problem, "use a number of ranks that divides it")
    return count // tp


def _hiding(window: int | None, max_length: int) -> int | None:
    return None if window is None or window >= max_length else window


def _once(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for index, one in enumerate(found) if one not in found[:index]]


def _check_norms(model: Mapping[str, Any]) -> None:
    """Checks that a kernel supports the normalization before the attention."""
    family = FAMILIES[model["model_type"]]
    if family.norms_queries:
        problem = "which normalizes queries and keys between qkv and the attention, which no kernel supports"
    elif family.adds_one_to_norms:
        problem = "whose norms multiply by 1 + their weight, while kernels multiply by the weight"
    else:
        return
    raise InvalidInput("model_type", f"is {model['model_type']!r}, {problem}", _WITHOUT_QKV)


def _check_turned(layer: LayerAttention) -> None:
    """Checks that a kernel supports the rotation of queries and keys."""
    if layer.rotary not in _PLAIN_ROTARY:
        problem = f"is of type {layer.rotary!r}, but kernels have fixed frequencies and one position per token"
        raise InvalidInput("rope_scaling", problem, _WITHOUT_QKV)
    if layer.turned_part not in (None, 1.0):
        problem = f"is {layer.turned_part}, but kernels rotate whole heads"
        raise InvalidInput("partial_rotary_factor", problem, _WITHOUT_QKV)


def words_of(pair: Mapping[str, Any]) -> str:
    """A description of an attention and the ops around it."""
    if "ops" in pair:
        names = ", ".join(op["name"] for op in pair["ops"])
        reach = next((_reach(op) for op in pair["ops"] if op.get("op") == ATTENTION), f"{pair['m']} rows")
        return f"{names}: {reach}"
    projected = "its projection" if pair["d_out"] else "no projection, since o_proj has a bias or is quantised"
    return f"attention: {_reach(pair)}, {projected}"


def _reach(attention: Mapping[str, Any]) -> str:
    window = f", a window of {attention['window']}" if attention.get("window") else ""
    return f"{attention['sequences']} x {attention['max_length']} tokens{window}"


def block_chains(config: Mapping[str, Any], *, sequences: int, tp: int = 1, **how: Any) -> list[Json]:
    """The blocks of a decode step, as `POST /jobs` takes them: norm, qkv, attention, o_proj, norm, gate_up and down,
    and the residual stream that both add to. If ranks share a block, these are the two runs between its all-reduces: up
    to o_proj, and the MLP with its norm.

    Args: see `qkv_attention_chains`.

    Raises:
        InvalidInput: see `qkv_attention_chains` and `ffn_shapes`.
    """
    layers = qkv_attention_chains(config, sequences=sequences, tp=tp, **how)
    stream = "residual" if tp > 1 else "o_proj"
    mlp = _mlp(config, stream=stream, tp=tp, dtype=layers[0]["dtype"])
    if tp > 1:
        return [*layers, {"kind": "chain", "m": sequences, "dtype": layers[0]["dtype"], "ops": mlp}]
    return [{**layer, "ops": [*_added(layer["ops"]), *mlp]} for layer in layers]


def layer_chains(config: Mapping[str, Any], *, sequences: int, tp: int = 1, **how: Any) -> list[Json]:
    """The layers of a decode step starting with their attention, as `POST /jobs` takes them: attention, o_proj,
    gate_up, down, and the next layer's qkv, which writes to that layer's cache.

    Args: see `qkv_attention_chains`.

    Raises:
        InvalidInput: see `qkv_attention_chains` and `ffn_shapes`; or several ranks share a layer.
    """
    if tp > 1:
        problem = f"is {tp}: there is an all-reduce within a layer, which no kernel supports"
        raise InvalidInput("tp", problem, "use --blocks instead of --layers: it covers the runs between all-reduces")
    found = []
    for chain in qkv_attention_chains(config, sequences=sequences, **how):
        qkv, attention, o_proj = chain["ops"]
        up, down = _mlp(config, stream=o_proj["name"], tp=tp, dtype=chain["dtype"])
        front = [{**attention, "source": "q"}, {**o_proj, "residual": "residual"}]
        behind = {**qkv, "source": down["name"], "norm": down["name"]}
        found.append({**chain, "ops": [*front, up, {**down, "is_output": True}, behind]})
    return found


def what_to_take(*, with_qkv: bool, blocks: bool, layers: bool) -> Callable[..., list[Json]]:
    """The function that reads a config, by the options of `tune-model`."""
    if layers:
        return layer_chains
    return block_chains if blocks else qkv_attention_chains if with_qkv else attention_pairs


def _added(ops: Sequence[Json]) -> list[Json]:
    """The ops with the residual stream added to o_proj, the last one."""
    *front, o_proj = ops
    return [*front, {**o_proj, "residual": "residual"}]


def _mlp(config: Mapping[str, Any], *, stream: str, tp: int, dtype: str) -> list[Json]:
    """Norm, gate_up and down; if `stream` is an op's output, it is added."""
    [shape] = ffn_shapes(config, tp=tp, dtype=dtype)
    eps = dense_language_model(config)["rms_norm_eps"]
    up = {"name": "gate_up", "source": stream, "n": shape.d_hidden, "k": shape.d_in, "bias": shape.bias}
    up |= {"gated": shape.gated, "activation": shape.activation, "norm": stream, "eps": eps}
    down = {"name": "down", "source": "gate_up", "n": shape.d_out, "k": shape.d_hidden, "bias": shape.bias}
    return [up, down | ({} if stream == "residual" else {"residual": stream})]
