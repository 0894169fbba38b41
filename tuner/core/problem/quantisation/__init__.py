"""What a checkpoint's `quantization_config` says of its products: a file a method."""

from tuner.core.problem.quantisation.methods import METHODS, quantisation_of, stored_as
from tuner.core.problem.quantisation.said import Activations, Stored

__all__ = ["METHODS", "Activations", "Stored", "quantisation_of", "stored_as"]
