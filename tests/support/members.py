"""Workers of a cluster as the server sees them, and what it asks them to build."""

from __future__ import annotations

from tuner.core.problem.gpu import parse_target
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective
from tuner.core.trial.limits import Limits
from tuner.dispatch.cluster import messages
from tuner.dispatch.cluster.members import Member


def member(kinds: dict[str, int]) -> Member:
    """A worker without a card that reports these op kinds."""
    announcement = messages.Announcement(
        tuner_version="0", joining="1", cards=(), num_places=1, kinds=kinds, compiler="", limits=Limits()
    )
    text = messages.encode(announcement).decode()
    return Member("tcp://worker", text, messages.decode_announcement(text), {}, 1.0)


def prepare(workload: Workload, candidate: Candidate) -> messages.PrepareCall:
    """The request to build a candidate for a simulated H200."""
    problem = Problem(workload=workload, objective=Objective())
    return messages.PrepareCall(target=parse_target("simulated:h200"), problem=problem, candidate=candidate)
