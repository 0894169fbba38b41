"""What is remembered: jobs, trials, events, results and artifacts. One process writes; nothing else is true."""

from sqlalchemy.orm import Session

from tuner.store.admin.gc import Freed
from tuner.store.database import Store

__all__ = ["Freed", "Session", "Store"]
