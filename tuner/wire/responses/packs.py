"""Requests for packs, and the location of a pack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Self

from pydantic import Field

from tuner.core.problem.objective import CacheState
from tuner.core.problem.workload import Workload
from tuner.errors import InvalidInput
from tuner.packs.ladder import DEFAULT_MIN_GAIN
from tuner.packs.order import MadePack, PackOrder
from tuner.packs.shapes import Shape, shape_kinds, shape_of
from tuner.wire.base.fields import Size, Strict
from tuner.wire.base.root_path import Link
from tuner.wire.base.view import View
from tuner.wire.requests.jobs import TargetId
from tuner.wire.requests.pairs import Chain, FfnShape
from tuner.wire.requests.searches import CacheName, RegimeName

#: Maximum number of shapes in a pack.
MAX_SHAPES, MAX_ROW_COUNTS = 64, 256

Rows = Annotated[
    list[Size], Field(min_length=1, max_length=MAX_ROW_COUNTS, description=("the values of m that were tuned"))
]


class PackShape(FfnShape):
    """An FFN without its rows, and the tuned numbers of rows."""

    rows: Rows

    def to_shape(self) -> Shape:
        """The shape without its numbers of rows."""
        data = self.model_dump(exclude={"rows"})
        return Shape(**data | {"dtype": str(self.dtype), "activation": str(self.activation)})


class PackRequest(Strict):
    """The body of `POST /packs`."""

    shapes: Annotated[list[PackShape], Field(max_length=MAX_SHAPES)] = Field(default=[])
    attentions: Annotated[list[Chain], Field(max_length=MAX_ROW_COUNTS)] = Field(
        default=[],
        description="tuned attention ops, alone or with a following projection, in the form of a job request",
    )
    layers: Annotated[list[Chain], Field(max_length=MAX_ROW_COUNTS)] = Field(
        default=[],
        description=("tuned layers, each an attention with other products around it, in the form of a job request"),
    )
    chains: Annotated[list[Chain], Field(max_length=MAX_ROW_COUNTS)] = Field(
        default=[],
        description="tuned chains of products without an attention, such as an MLP with its norm, in the form of a "
        "job request",
    )
    target: TargetId | None = Field(default=None, description="default: the server's own")
    l2: CacheName = CacheState.COLD
    regime: RegimeName | None = None
    min_gain: float = Field(
        default=DEFAULT_MIN_GAIN,
        ge=0,
        le=100,
        description=("a kernel is kept only if its speed-up over the library is at least this"),
    )

    batch_invariant: bool = Field(
        default=False,
        description=(
            "the bits of a row do not depend on other rows, since all kernels sum in the same order; "
            "excludes `min_gain`"
        ),
    )

    def to_order(self, default_target_id: str | None) -> PackOrder:
        """The requested pack.

        Raises:
            InvalidInput: nothing is requested, a shape is repeated, a workload is in the wrong list, invariance is
                requested for workloads other than FFNs, or no target is given and the server has none.
        """
        workloads = tuple(_workloads(self))
        if not self.shapes and not workloads:
            raise InvalidInput("shapes", "is empty, and so are the others", "list the tuned shapes")
        if workloads and self.batch_invariant:
            problem = "is requested, but only an FFN of `shapes` supports it"
            raise InvalidInput("batch_invariant", problem, "leave it out, or make a separate pack of these")
        target_id = self.target or default_target_id
        if target_id is None:
            raise InvalidInput("target", "is missing, and this server has no default", "pass one, e.g. `h200`")
        shapes = tuple((shape.to_shape(), tuple(shape.rows)) for shape in self.shapes)
        _check_once(shapes)
        return PackOrder(
            shapes=shapes,
            workloads=workloads,
            target_id=target_id,
            l2=self.l2,
            regime=self.regime,
            min_gain=self.min_gain,
            batch_invariant=self.batch_invariant,
        )


def _workloads(asked: PackRequest) -> Iterator[Workload]:
    seen: dict[Workload, str] = {}
    for section in (section for section in shape_kinds() if section != Shape.section):
        for number, chain in enumerate(getattr(asked, section)):
            workload: Workload = chain.to_workload()
            field = f"{section}.{number}"
            if (found := shape_of(workload.to_json()).section) != section:
                raise InvalidInput(field, f"belongs in {found}", "move it there")
            if (first := seen.setdefault(workload, field)) != field:
                raise InvalidInput(field, f"repeats {first}", "give each once")
            yield workload


def _check_once(shapes: Sequence[tuple[Shape, tuple[int, ...]]]) -> None:
    seen: dict[Shape, int] = {}
    for number, (shape, rows) in enumerate(shapes):
        if shape in seen:
            problem = f"repeats the shape of shapes.{seen[shape]}"
            raise InvalidInput(f"shapes.{number}", problem, "list each shape once, with all of its rows")
        if len(set(rows)) < len(rows):
            raise InvalidInput(f"shapes.{number}.rows", "repeats a number", "list each number of rows once")
        seen[shape] = number


class PackView(View):
    """A pack that the service made and stores."""

    digest: str = Field(description="sha256 of the file, hex")
    href: Link = Field(description="path of the file")
    size_bytes: int
    key: str = Field(description="the public Ed25519 key of the signature, hex, for clients to pin")
    simulated: bool = Field(description="whether its kernels never ran on a card")

    @classmethod
    def of(cls, made: MadePack) -> Self:
        """Copies `made`."""
        return cls(
            digest=made.digest,
            href=f"/artifacts/{made.digest}",
            size_bytes=made.size_bytes,
            key=made.key,
            simulated=made.simulated,
        )
