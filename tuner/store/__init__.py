"""Persistent data: jobs, trials, events, results and artifacts. Only one process writes, and this is the only source of
truth."""

from sqlalchemy.orm import Session

from tuner.store.admin.gc import Freed
from tuner.store.database import Store

__all__ = ["Freed", "Session", "Store"]
