"""How libraries run a pair of convolutions: fp16, channels last, with bias and ReLU after each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch.nn import functional

from benchmarks.attention.timing import fastest
from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.ops.gemm.card.cublaslt import WORKSPACE_BYTES, CublasLt, LibraryGemm
from tuner.ops.gemm.op import GemmOp

from .rows import Layer, Row

#: [image, filter, bias, residual or None] -> output, channels last.
Convolve = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

#: Rounds that time cuBLASLt's algorithms, and the number of sets of weights.
_ROUNDS, _TRIED_SETS = 5, 8
#: Number of images that launches alternate among.
_NUM_IMAGES = 6


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of a row, with several sets of weights, which launches use in turn."""

    row: Row
    num_sets: int
    #: Whether an image of the output's shape is added before the last ReLU.
    residual: bool = False

    @cached_property
    def images(self) -> Sequence[torch.Tensor]:
        """Images, [batch, channels, size, size] each."""
        return [self._image(self.row.pair.first.channels) for _ in range(_NUM_IMAGES)]

    @cached_property
    def added(self) -> torch.Tensor | None:
        """The residual."""
        return self._image(self.row.pair.second.filters) if self.residual else None

    @cached_property
    def weights(self) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
        """Filters of both layers of each set, [filters, channels, kernel, kernel] each."""
        both = (_filters(layer, self.num_sets) for layer in self.row.pair.layers)
        return list(zip(*both, strict=True))

    @cached_property
    def biases(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Biases of both layers."""
        first, second = (torch.randn(one.filters, device="cuda", dtype=torch.half) for one in self.row.pair.layers)
        return first, second

    def _image(self, channels: int) -> torch.Tensor:
        size = self.row.pair.size
        return torch.randn(self.row.batch, size, size, channels, device="cuda", dtype=torch.half).permute(0, 3, 1, 2)

    def run(self, number: int, convolve: tuple[Convolve, Convolve]) -> torch.Tensor:
        """Runs the pair with one set of weights."""
        first, second = self.weights[number]
        middle = convolve[0](self.images[number % _NUM_IMAGES], first, self.biases[0], None)
        return convolve[1](middle, second, self.biases[1], self.added)

    def expected(self) -> torch.Tensor:
        """The result for the first set, with fp32 sums; the image between the layers is rounded to fp16."""
        return self.run(0, (_in_fp32, _in_fp32)).float()


@dataclass(frozen=True, kw_only=True)
class Side:
    """One way to run a pair with a library."""

    name: str
    convolve: tuple[Convolve, Convolve]
    #: How the side was chosen.
    chosen: str = ""


def sides(inputs: Inputs, lt: CublasLt, *, compiled: bool) -> list[Callable[[], Side]]:
    """A constructor for each side. cuDNN times its plans at the first call with a shape."""
    makes: list[Callable[[], Side]] = [
        lambda: Side(name="cudnn", convolve=(_cudnn, _cudnn), chosen="the fastest of cuDNN's plans"),
        lambda: Side(name="eager", convolve=(_eager, _eager)),
    ]
    if any(layer.kernel == 1 for layer in inputs.row.pair.layers):
        makes.insert(1, partial(_with_cublaslt, inputs, lt))
    if compiled:
        makes.append(_compiled)
    return makes


def _filters(layer: Layer, num_sets: int) -> Sequence[torch.Tensor]:
    """Random filters, channels last, with a scale that keeps outputs near 1."""
    kernel = layer.kernel
    shape = (num_sets, layer.filters, kernel, kernel, layer.channels)
    values = torch.randn(shape, device="cuda", dtype=torch.half) / (kernel**2 * layer.channels) ** 0.5
    return list(values.permute(0, 1, 4, 2, 3))


def _in_fp32(
    image: torch.Tensor, filters: torch.Tensor, bias: torch.Tensor, added: torch.Tensor | None
) -> torch.Tensor:
    found = functional.conv2d(image.float(), filters.float(), bias.float(), padding=filters.shape[-1] // 2)
    return torch.relu(found if added is None else found + added.float()).half()


def _eager(image: torch.Tensor, filters: torch.Tensor, bias: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
    found = functional.conv2d(image, filters, bias, padding=filters.shape[-1] // 2)
    return torch.relu_(found if added is None else found.add_(added))


def _cudnn(image: torch.Tensor, filters: torch.Tensor, bias: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
    """One launch: convolution, residual, bias and ReLU."""
    around = (filters.shape[-1] // 2,) * 2
    if added is None:
        return torch.cudnn_convolution_relu(image, filters, bias, (1, 1), around, (1, 1), 1)
    return torch.cudnn_convolution_add_relu(image, filters, added, 1.0, bias, (1, 1), around, (1, 1), 1)


def _compiled() -> Side:
    """`torch.compile`, one function per layer."""
    torch._dynamo.reset()  # otherwise it would compile other shapes as dynamic
    eager = torch.compile(_eager, mode="max-autotune-no-cudagraphs")
    return Side(name="torch.compile", convolve=(eager, eager), chosen="max-autotune")


def _with_cublaslt(inputs: Inputs, lt: CublasLt) -> Side:
    """Layers of 1x1 are products with the best of cuBLASLt's algorithms; cuDNN runs the others."""
    convolve, chosen = list[Convolve](), list[str]()
    for index, layer in enumerate(inputs.row.pair.layers):
        if layer.kernel > 1:
            convolve.append(_cudnn)
            continue
        product = _Product(inputs, index, lt)
        convolve.append(product)
        chosen.append(f"algorithm {product.algorithm} of layer {index}")
    return Side(name="cublaslt", convolve=(convolve[0], convolve[1]), chosen=", ".join(chosen))


class _Product:
    """A layer of 1x1 as a product of cuBLASLt with its fused bias and ReLU."""

    def __init__(self, inputs: Inputs, index: int, lt: CublasLt) -> None:
        """Times what the heuristic offers.

        Raises:
            WorkerError: the library offers none, or refuses all.
        """
        layer, row = inputs.row.pair.layers[index], inputs.row
        op = GemmOp(
            name="layer", m=row.pixels, n=layer.filters, k=layer.channels, bias=True, activation=Activation.RELU
        )
        kind = Dtype.FP16.row.library
        assert kind is not None, "cuBLASLt has fp16"
        self._gemm = LibraryGemm(lt, op, kind, inputs.biases[index].data_ptr())
        self._gemm.can_add = True  # before its ReLU, as convolutions add theirs
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        size = row.pair.size
        self._output = torch.empty(row.batch, size, size, layer.filters, device="cuda", dtype=torch.half)
        self.algorithm = self._best(inputs, index)

    def __call__(
        self, image: torch.Tensor, filters: torch.Tensor, bias: torch.Tensor, added: torch.Tensor | None
    ) -> torch.Tensor:
        """Runs the product, with the bias given at its creation."""
        self._launch(image, filters, added, self.algorithm)
        return self._output.permute(0, 3, 1, 2)

    def _launch(self, image: torch.Tensor, filters: torch.Tensor, added: torch.Tensor | None, algorithm: int) -> None:
        self._gemm.launch(
            image.data_ptr(),
            filters.data_ptr(),
            self._output.data_ptr(),
            0 if added is None else added.data_ptr(),
            self._workspace.data_ptr(),
            torch.cuda.current_stream().cuda_stream,
            algorithm=algorithm,
        )

    def _best(self, inputs: Inputs, index: int) -> int:
        sets = [weights[index] for weights in inputs.weights[:_TRIED_SETS]]
        image = torch.randn(inputs.row.pixels, inputs.row.pair.layers[index].channels, device="cuda", dtype=torch.half)
        added = inputs.added if index == 1 else None
        numbers = range(self._gemm.num_algorithms)
        return fastest(
            [[partial(self._launch, image, one, added, number) for one in sets] for number in numbers], _ROUNDS
        )
