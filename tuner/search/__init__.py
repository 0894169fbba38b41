"""History in, next candidate out: Optuna over the legal, unseen schedules."""

from tuner.search.searcher import Searcher

__all__ = ["Searcher"]
