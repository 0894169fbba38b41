"""Persistent data: jobs, trials, events, results and artifacts. They are the only source of truth, and only one process
writes them."""

from sqlalchemy.orm import Session

from tuner.store.admin.gc import Freed
from tuner.store.database import Store

__all__ = ["Freed", "Session", "Store"]
