"""All launches of a workload with launch ops, as one runner."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.core.proof.launch_order import in_launch_order

from ...source.launchable import LaunchRefused
from ..launching.launch import PlanOnDevice
from ..library.runners import ChainRunner, StreamsRunner
from ..tensors.op_data import RunOperands
from .launch import OwnOnDevice


class OwnRunner:
    """All launches of a workload with launch ops, in the order of its ops, on one stream."""

    def __init__(
        self, own: tuple[OwnOnDevice, ...], products: ChainRunner | None, places: Sequence[int] | None = None
    ) -> None:
        """`products` are the launches of products, if there are any. `places` are the positions of their operands among
        those of a run, if an own op computes some of the ops that these are for.

        Raises:
            LaunchRefused: products on both sides run on two streams.
        """
        self._own, self._products, self._places = own, products, places
        workload = own[0].launchable.workload
        plans = products.plans if products else ()
        shared = [(plan.plan.graph.op_indices, index) for index, plan in enumerate(plans)]
        #: Each launch op, and between them the launches of consecutive products.
        self._order = list[OwnOnDevice | range]()
        for _, launch in in_launch_order(workload, shared, own):
            if not isinstance(launch, int):
                self._order.append(launch)
            elif self._order and isinstance(before := self._order[-1], range):
                self._order[-1] = range(before.start, launch + 1)
            else:
                self._order.append(range(launch, launch + 1))
        if isinstance(products, StreamsRunner) and range(len(plans)) not in self._order:
            raise LaunchRefused("a launch op runs between products, but these run on two streams side by side")

    @property
    def plans(self) -> tuple[OwnOnDevice | PlanOnDevice, ...]:
        """Plans of all launches, in order."""
        plans = list[OwnOnDevice | PlanOnDevice]()
        for one in self._order:
            if isinstance(one, range):
                assert self._products is not None
                plans += self._products.plans[one.start : one.stop]
            else:
                plans.append(one)
        return tuple(plans)

    def enqueue(self, ops: RunOperands, stream: int) -> None:
        """Enqueues the launches in order."""
        of_products = tuple(ops) if self._places is None else tuple(ops[place] for place in self._places)
        for one in self._order:
            if isinstance(one, range):
                assert self._products is not None
                self._products.enqueue_some(of_products, stream, one.start, one.stop)
            else:
                one.launch(ops, stream)

    def abort_record(self) -> str | None:
        """A launch op's invalid length or page, or expired wait; otherwise the products' first one."""
        found = next((found for one in self._own if (found := one.abort_record())), None)
        return found or (self._products.abort_record() if self._products else None)

    def overwritten(self) -> str:
        """What the first of its launches overwrote although it must not."""
        found = next((found for one in self._own if (found := one.overwritten())), "")
        return found or (self._products.overwritten() if self._products else "")

    def poison(self) -> None:
        """Sets the own memory of launch ops and products to NaN."""
        for one in self._own:
            one.poison()
        if self._products is not None:
            self._products.poison()
