"""An Optuna study in an SQLite file, which `optuna.load_study` and optuna-dashboard read."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.client.documents.documents import JobDetail, Trial
from tuner.client.errors import ClientError
from tuner.client.exports.axes import Value, axes_of, values_of
from tuner.versions import install_command

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

#: Figures of a measured trial besides its time.
_FIGURES = ("library_us", "speedup", "spread", "rel_error", "truncated", "remark")


def study_of(job: JobDetail, trials: Sequence[Trial]) -> bytes:
    """The file: a study named after the job, which minimises microseconds.

    Measured trials are complete, rejected ones are pruned, since they never ran, and failed ones have failed.

    Raises:
        ClientError: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise ClientError(f"Optuna is not installed; it comes with {install_command('server')}") from error
    distributions = {name: _distribution(values) for name, values in values_of(trials).items()}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.db"
        # A folder's name may need quoting in the URL, and in the template from which Optuna makes a URL.
        made_by = {"creator": lambda: sqlite3.connect(file, check_same_thread=False)}
        storage = optuna.storages.RDBStorage("sqlite://", engine_kwargs=made_by)
        optuna.logging.disable_propagation()
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.create_study(storage=storage, study_name=job["id"], direction="minimize")
            for name in ("workload", "target", "simulated", "seed", "state"):
                study.set_user_attr(name, job[name])
            study.set_user_attr("unit", "microseconds")
            study.add_trials([_frozen(trial, distributions) for trial in trials])
        finally:
            optuna.logging.set_verbosity(verbosity)
            storage.remove_session()
            storage.engine.dispose()
        return file.read_bytes()


def _distribution(values: Sequence[Value]) -> BaseDistribution:
    """A range for integers, otherwise a choice."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    numbers = [one for one in values if isinstance(one, int) and not isinstance(one, bool)]
    if len(numbers) == len(values) and len(values) > 1:
        return IntDistribution(min(numbers), max(numbers))
    return CategoricalDistribution(values)


def _frozen(trial: Trial, distributions: dict[str, BaseDistribution]) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    outcome, axes = trial["outcome"], axes_of(trial["candidate"])
    attributes: dict[str, Any] = {
        "number": trial["number"],
        "outcome": outcome["kind"],
        "simulated": trial["simulated"],
        "schedule": trial["candidate"]["text"],
    }
    value, state = None, TrialState.FAIL
    if outcome["kind"] == "measured":
        value, state = outcome["time_us"], TrialState.COMPLETE
        attributes |= {name: outcome[name] for name in _FIGURES}  # type: ignore[literal-required]
    else:
        attributes |= {"stage": outcome["stage"], "reason": outcome["reason"]}
        if outcome["kind"] == "rejected":
            state = TrialState.PRUNED
    found = create_trial(
        state=state,
        value=value,
        params=dict(axes),
        distributions={name: distributions[name] for name in axes},
        user_attrs=attributes,
    )
    found.datetime_start, found.datetime_complete = _local(trial["started_at"]), _local(trial["finished_at"])
    return found


def _local(moment: str) -> datetime:
    """In Optuna's form: local times, without a zone."""
    return datetime.fromisoformat(moment).astimezone().replace(tzinfo=None)
