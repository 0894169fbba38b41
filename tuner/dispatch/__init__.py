"""Sends candidates to builders and cards: the protocols, and their implementation for one machine."""

from tuner.dispatch.factory import make_evaluators
from tuner.dispatch.local import LocalDispatcher
from tuner.dispatch.protocol import BuildPool, Dispatcher, MeasureLane

__all__ = ["BuildPool", "Dispatcher", "LocalDispatcher", "MeasureLane", "make_evaluators"]
