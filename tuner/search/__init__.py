"""Chooses the next candidate from the history, with Optuna, among the legal schedules that were not tried."""

from tuner.search.order import SearchOrder, search_here
from tuner.search.processes import SearchProcesses
from tuner.search.searcher import Searcher

__all__ = ["SearchOrder", "SearchProcesses", "Searcher", "search_here"]
