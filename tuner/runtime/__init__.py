"""Runs the kernels of a pack on arrays of CuPy, PyTorch, and any library that supports DLPack or
`__cuda_array_interface__`.

pack = tuner.runtime.load("model.tunerpack")
ffn = pack.bind(tuner.runtime.Weights(w1, w2, activation="silu", gated=True))
y = ffn(x)
"""

from tuner.runtime.binding.native import RuntimeFailure, WrongOperand
from tuner.runtime.device.launch_list import Launches
from tuner.runtime.models.patching import patch
from tuner.runtime.programs.artifact import Artifact, load_artifact
from tuner.runtime.programs.attention import Attention, load_attention
from tuner.runtime.programs.ffn import Ffn
from tuner.runtime.programs.pack import Answer, Pack, load
from tuner.runtime.programs.program import Layer, Program, load_layer
from tuner.runtime.tensors.arrays import NotAnArray
from tuner.runtime.tensors.batch_norm import fold_batch_norm
from tuner.runtime.tensors.weights import Weights

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
    "fold_batch_norm",
    "load",
    "load_artifact",
    "load_attention",
    "load_layer",
    "patch",
]
