"""How a checkpoint's `quantization_config` describes its products: one file per method."""

from tuner.core.problem.quantisation.methods import METHODS, quantisation_of, stored_as
from tuner.core.problem.quantisation.said import Activations, Stored

__all__ = ["METHODS", "Activations", "Stored", "quantisation_of", "stored_as"]
