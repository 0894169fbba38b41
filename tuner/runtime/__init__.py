"""Runs the kernels of a pack on arrays of CuPy, PyTorch, and whatever speaks DLPack or `__cuda_array_interface__`.

pack = tuner.runtime.load("model.tunerpack")
ffn = pack.bind(tuner.runtime.Weights(w1, w2, activation="silu", gated=True))
y = ffn(x)
"""

from .arrays import NotAnArray
from .artifact import Artifact, load_artifact
from .attention import Attention, load_attention
from .ffn import Ffn
from .launch_list import Launches
from .native import RuntimeFailure, WrongOperand
from .pack import Answer, Pack, load
from .patching import patch
from .program import Layer, Program, load_layer
from .weights import Weights

__all__ = [
    "Answer",
    "Artifact",
    "Attention",
    "Ffn",
    "Launches",
    "Layer",
    "NotAnArray",
    "Pack",
    "Program",
    "RuntimeFailure",
    "Weights",
    "WrongOperand",
    "load",
    "load_artifact",
    "load_attention",
    "load_layer",
    "patch",
]
