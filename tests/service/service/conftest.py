from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.service.service.helpers import evaluator
from tuner.core.problem.objective import FinalsProcedure
from tuner.core.trial.evaluator import Evaluator
from tuner.dispatch import LocalDispatcher
from tuner.service import Service
from tuner.store import Store

Serve = Callable[..., Service]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "data")
    yield store
    store.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a service over the test's data directory; a second call continues where the first one ended."""
    running: list[Service] = []

    def start(
        *evaluators: Evaluator,
        finals: FinalsProcedure | None = None,
        num_places: int | None = None,
        max_ahead: int | None = None,
    ) -> Service:
        while running:
            running.pop().close()
        dispatcher = LocalDispatcher(evaluators or [evaluator()], num_places=num_places)
        service = Service(Store.open(tmp_path / "data"), dispatcher, finals=finals, max_ahead=max_ahead)
        service.start()
        running.append(service)
        return service

    yield start
    for service in running:
        service.close()
