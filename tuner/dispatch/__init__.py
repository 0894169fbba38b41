"""Carries candidates to what measures them: one protocol, and its one-machine form."""

from tuner.dispatch.factory import make_evaluators
from tuner.dispatch.local import LocalDispatcher
from tuner.dispatch.protocol import Dispatcher

__all__ = ["Dispatcher", "LocalDispatcher", "make_evaluators"]
