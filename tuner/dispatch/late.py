"""A dispatcher that has no workers yet, as on a standby server."""

from __future__ import annotations

from collections.abc import Callable

from tuner.core.problem.gpu import Target
from tuner.core.trial.evaluator import Quarantine
from tuner.dispatch.protocol import BuildPool, Dispatcher, MeasureLane
from tuner.errors import NotFound


class LateDispatcher:
    """A `Dispatcher` without workers, until `fill` gives it those of another dispatcher."""

    def __init__(self) -> None:
        self._filling: Dispatcher | None = None
        self._watchers: list[Callable[[Target, int], None]] = []

    def fill(self, dispatcher: Dispatcher) -> None:
        """Forwards to `dispatcher` from now on; watchers are told about its workers."""
        self._filling = dispatcher
        for joined in self._watchers:
            dispatcher.watch(joined)

    @property
    def targets(self) -> tuple[Target, ...]:
        """All targets that can be measured on."""
        return self._filling.targets if self._filling else ()

    @property
    def absence(self) -> str:
        """Why there was never a worker; empty before it is filled, since none is expected then."""
        return self._filling.absence if self._filling else ""

    def num_workers(self, target_id: str) -> int:
        """How many workers have a target."""
        return self._filling.num_workers(target_id) if self._filling else 0

    def lane(self, target_id: str, worker: int = 0) -> MeasureLane:
        """The queue for a worker's card.

        Raises:
            NotFound: no worker has that target here.
        """
        return self._filled(target_id).lane(target_id, worker)

    def builds(self, target_id: str, worker: int = 0) -> BuildPool:
        """The build pool for a worker's card.

        Raises:
            NotFound: no worker has that target here.
        """
        return self._filled(target_id).builds(target_id, worker)

    def _filled(self, target_id: str) -> Dispatcher:
        if self._filling is None:
            raise NotFound(f"no worker serves {target_id}: this server is a standby")
        return self._filling

    def quarantine(self, target_id: str, worker: int | None = None) -> Quarantine | None:
        """The reason why measuring is suspended; None if it is not."""
        return self._filling.quarantine(target_id, worker) if self._filling else None

    def watch(self, joined: Callable[[Target, int], None]) -> None:
        """Calls `joined` for each worker, now or when there are some."""
        self._watchers.append(joined)
        if self._filling is not None:
            self._filling.watch(joined)

    def close(self) -> None:
        """Ends the workers."""
        if self._filling is not None:
            self._filling.close()
