"""Which results a pack is built from, in a real database."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.service.service.test_matching import Result, keep
from tests.support.builders import BEST
from tuner.core.access.caller import Caller, Role
from tuner.core.problem.objective import CacheState, Regime
from tuner.core.problem.workload import Workload
from tuner.core.trial.job import Objective
from tuner.packs.order import PackOrder
from tuner.packs.read import read_pack
from tuner.packs.shapes import Shape
from tuner.service.results.pack_maker import make_pack, workload_of
from tuner.store import Store
from tuner.store.access import audit
from tuner.wire.responses.packs import PackRequest

SHAPE = Shape(dtype="fp16", activation="silu", d_in=64, d_hidden=128, d_out=64, gated=True)
ORDER = PackOrder(shapes=((SHAPE, (16,)),), target_id="h200", l2=CacheState.COLD, min_gain=1.02)
TODAY, BEFORE = (replace(BEST.environment, simulated=False, kernel_version=version) for version in ("new", "old"))


def asked() -> Workload:
    return workload_of(SHAPE, 16)


def packed_job(store: Store, kernel_version: str | None) -> str:
    """The job that provides the pack's kernel for 16 rows."""
    made = make_pack(store, ORDER, 1.0, kernel_version)
    rung = read_pack(store.artifacts.get(made.digest)).entries[0].at(16)
    assert rung is not None
    return str(rung.provenance["job"])


def test_results_of_todays_kernels_go_before_better_ones_of_older_kernels(store: Store) -> None:
    ids = keep(
        store,
        [Result(16, workload=asked(), here=TODAY), Result(16, workload=asked(), here=BEFORE, gains=1.2)],
    )
    assert packed_job(store, "new") == ids[0]
    assert packed_job(store, "of tomorrow") == ids[1]
    assert packed_job(store, None) == ids[1]


def test_an_order_may_name_the_regime(store: Store) -> None:
    sustained = Objective(regime=Regime.SUSTAINED)
    ids = keep(
        store,
        [
            Result(16, workload=asked(), here=TODAY),
            Result(16, workload=asked(), here=TODAY, gains=1.2, objective=sustained),
        ],
    )
    for regime, job in ((None, ids[0]), (Regime.BURST, ids[0]), (Regime.SUSTAINED, ids[1])):
        order = replace(ORDER, regime=regime)
        pack = read_pack(store.artifacts.get(make_pack(store, order, 1.0, "new").digest))
        rung = pack.entries[0].at(16)
        assert rung is not None
        assert rung.provenance["job"] == job
        said = {} if regime is None else {"regime": str(regime)}
        assert {name: pack.document["provenance"][name] for name in said} == said
        assert PackRequest.model_validate_json(json.dumps(order.to_json())).to_order(None) == order


def test_the_librarys_recipe_is_in_the_pack_where_the_library_runs(store: Store) -> None:
    keep(store, [Result(16, workload=asked(), here=TODAY)])
    made = make_pack(store, ORDER, 1.0, "new")
    rung = read_pack(store.artifacts.get(made.digest)).entries[0].at(16)
    assert rung is not None
    assert BEST.library is not None
    assert (rung.kernel, dict(rung.library)) == (None, BEST.library.to_json())
    assert rung.provenance["timed_ours"] is False  # there are no finals in this result


def test_a_pack_says_that_ours_was_timed(store: Store) -> None:
    keep(store, [Result(16, workload=asked(), here=TODAY, gains=1.005)])
    rung = read_pack(store.artifacts.get(make_pack(store, ORDER, 1.0, "new").digest)).entries[0].at(16)
    assert rung is not None
    assert (rung.kernel, rung.provenance["timed_ours"]) == (None, True)


def test_the_audit_log_says_who_had_a_pack_made(store: Store) -> None:
    keep(store, [Result(16, workload=asked(), here=TODAY)])
    made = make_pack(store, ORDER, 1.0, "new", Caller(owner="alice", role=Role.SUBMIT, token_id="tok-1", address=""))
    with store.read() as session:
        (entry,) = audit.page(session, None, 10).items
    assert (entry.owner, entry.action, entry.subject) == ("alice", "pack.make", made.digest)
