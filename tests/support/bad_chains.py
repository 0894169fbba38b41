"""Invalid chains in requests to `POST /jobs`: the field and the message by which each is refused."""

from __future__ import annotations

from typing import Any, NamedTuple

A, B = {"name": "a", "source": "x", "n": 64, "k": 32}, {"name": "b", "source": "a", "n": 32, "k": 64}


def chain(*ops: dict[str, Any], m: int = 16) -> dict[str, Any]:
    """The `pair` of a request."""
    return {"kind": "chain", "m": m, "ops": list(ops)}


class BadChain(NamedTuple):
    """A request's `pair`, and the expected refusal."""

    pair: dict[str, Any]
    field: str
    #: Parts of the sentence about the problem, and of the one about the remedy.
    problem: str
    remedy: str


#: Refusals by the domain: how ops read each other, and whether shapes agree.
BAD_CHAINS = {
    "a cycle": BadChain(
        chain({**A, "source": "b"}, B), "pair.ops", "a cycle: a, which reads b, which reads a", "break it"
    ),
    "a cycle by a residual": BadChain(
        chain({**A, "residual": "b"}, {**B, "n": 64}), "pair.ops", "a cycle: a, which reads b", "break it"
    ),
    "an op that reads itself": BadChain(
        chain({**A, "source": "a", "k": 64}), "pair.ops", "a reads a, its own output", "topological order"
    ),
    "reads a later op": BadChain(chain(B, A), "pair.ops", "b reads a, which a later op writes", "topological order"),
    "adds a later op": BadChain(
        chain({**A, "residual": "c"}, B, {**A, "name": "c"}), "pair.ops", "a adds c, which a later op", "topological"
    ),
    "norms a later op": BadChain(
        chain({**A, "norm": "c"}, B, {**A, "name": "c", "n": 32}), "pair.ops", "a norms c, which a later op", "order"
    ),
    "two ops with the same name": BadChain(chain(A, A), "pair.ops", "the name 'a' is used twice", "a different name"),
    "an input with an operand's name": BadChain(
        chain(A, {**B, "source": "a.weight"}), "pair.ops", "a.weight is already an operand of a", "rename"
    ),
    "an input that is a letter away from an op that nothing reads": BadChain(
        chain({**A, "name": "gate"}, {**B, "source": "gaet"}), "pair.ops.1.source", "no op reads gate", "did you mean"
    ),
    "such a residual": BadChain(
        chain({**A, "name": "up"}, {**A, "name": "c", "source": "y", "residual": "upp"}),
        "pair.ops.1.residual",
        "is 'upp', which no op writes",
        "did you mean up?",
    ),
    "shapes that do not match": BadChain(
        chain(A, {**B, "k": 32}), "pair.ops.1.k", "reads a as [16, 32], but it is [16, 64]", "the producer's m and n"
    ),
    "an input with two shapes": BadChain(
        chain(A, {**B, "source": "x"}),
        "pair.ops.1.k",
        "reads x as [16, 64], but a reads it as [16, 32]",
        "different name",
    ),
    "a residual of another shape": BadChain(
        chain(A, {**B, "residual": "a"}), "pair.ops.1.residual", "adds a as [16, 32]", "own m and n"
    ),
    "a norm over a width that no op writes completely": BadChain(
        chain(A, {**B, "source": "y", "k": 32, "norm": "a"}),
        "pair.ops.1.norm",
        "no op writes completely",
        ("normalize the tensor that"),
    ),
    "a norm and a row scale": BadChain(
        chain(A, {**B, "norm": "a", "row_scale": True}), "pair.ops.1.norm", "both scale the rows", "the norm or the row"
    ),
    "eps without a norm": BadChain(chain(A, {**B, "eps": 1e-3}), "pair.ops.1.eps", "belongs to a norm", "leave it out"),
    "9 ops": BadChain(
        chain(*({**A, "name": f"a{i}"} for i in range(9))), "pair.ops", "9 ops, but a kernel holds", "at most 8"
    ),
    "a matrix beyond 32 bits": BadChain(
        chain(A, {**B, "n": 2**26}), "pair.b.W", "67108864 x 64 elements overflow a 32-bit index", "at or under"
    ),
}

#: Refusals by the form of the request.
BAD_FORMS = {
    "no ops": BadChain(chain(), "pair.ops", "has 0 entries", "use at least 1"),
    "no rows": BadChain(chain(A, B, m=0), "pair.m", "greater than or equal to 1, got 0", "use at least 1"),
    "an op without columns": BadChain(chain(A, {**B, "n": 0}), "pair.ops.1.n", "got 0", "use at least 1"),
    "columns in quotes": BadChain(chain({**A, "n": "64"}), "pair.ops.0.n", "got '64'", "use an integer"),
    "an op without k": BadChain(
        chain({name: size for name, size in A.items() if name != "k"}), "pair.ops.0.k", "is missing", "add it"
    ),
    "a field that no op has": BadChain(
        chain(A, {**B, "colour": 3}), "pair.ops.1.colour", "is not a known field", "check its spelling"
    ),
    "an unknown activation": BadChain(
        chain({**A, "activation": "tanh"}), "pair.ops.0.activation", "'tanh' is not one of the choices", "'relu'"
    ),
}
