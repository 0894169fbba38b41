"""History in, next candidate out: Optuna over the legal schedules that were not tried."""

from tuner.search.order import SearchOrder, search_here
from tuner.search.processes import SearchProcesses
from tuner.search.searcher import Searcher

__all__ = ["SearchOrder", "SearchProcesses", "Searcher", "search_here"]
