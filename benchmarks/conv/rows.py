"""The measured pairs of convolutions, and their minimum time on a card."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

#: Maximum rates of an H200: bytes/s read, and operations/s. Source: benchmarks.common.rates.
BYTES_PER_S, OPERATIONS_PER_S = 4.4e12, 790e12
#: Images at once.
BATCHES = (1, 4, 16, 32)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A convolution of stride 1 whose output is as large as its image, followed by bias and ReLU."""

    #: Rows and columns of its window.
    kernel: int
    #: Input and output channels.
    channels: int
    filters: int

    @property
    def num_weights(self) -> int:
        """Number of weights."""
        return self.kernel**2 * self.channels * self.filters


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two convolutions; the second reads the output of the first."""

    #: Name of the network and its stage, as in results.
    name: str
    #: Rows and columns of its images.
    size: int
    first: Layer
    second: Layer

    @cached_property
    def layers(self) -> tuple[Layer, Layer]:
        """Both layers."""
        return self.first, self.second

    @property
    def num_weights(self) -> int:
        """Number of weights of both layers."""
        return sum(layer.num_weights for layer in self.layers)


def pair(name: str, size: int, *layers: tuple[int, int, int]) -> Pair:
    """A pair from (kernel, channels, filters) of each layer."""
    first, second = (Layer(kernel=kernel, channels=c, filters=k) for kernel, c, k in layers)
    return Pair(name=name, size=size, first=first, second=second)


PAIRS = (
    pair("r50-s1-1x1-3x3", 56, (1, 256, 64), (3, 64, 64)),
    pair("r50-s1-3x3-1x1", 56, (3, 64, 64), (1, 64, 256)),
    pair("r50-s2-3x3-1x1", 28, (3, 128, 128), (1, 128, 512)),
    pair("r50-s3-1x1-3x3", 14, (1, 1024, 256), (3, 256, 256)),
    pair("r50-s3-3x3-1x1", 14, (3, 256, 256), (1, 256, 1024)),
    pair("r50-s4-1x1-3x3", 7, (1, 2048, 512), (3, 512, 512)),
    pair("r50-s4-3x3-1x1", 7, (3, 512, 512), (1, 512, 2048)),
    pair("r38-3x3-3x3-64", 56, (3, 64, 64), (3, 64, 64)),
    pair("r38-3x3-3x3-128", 28, (3, 128, 128), (3, 128, 128)),
    pair("r38-3x3-3x3-256", 14, (3, 256, 256), (3, 256, 256)),
    pair("r38-3x3-3x3-512", 7, (3, 512, 512), (3, 512, 512)),
    pair("vgg-3x3-3x3-128", 112, (3, 128, 128), (3, 128, 128)),
    pair("vgg-3x3-3x3-512", 28, (3, 512, 512), (3, 512, 512)),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A pair at a batch size."""

    pair: Pair
    batch: int

    @property
    def name(self) -> str:
        """The name on the command line."""
        return f"{self.pair.name}/b{self.batch}"

    @property
    def pixels(self) -> int:
        """Pixels of all images; no layer changes their number."""
        return self.batch * self.pair.size**2

    @property
    def floor_us(self) -> float:
        """The time of reading images and weights and writing the output, or of the multiplications, whichever is
        longer. The image between the layers is not included."""
        values = self.pixels * (self.pair.first.channels + self.pair.second.filters) + self.pair.num_weights
        operations = 2 * self.pixels * self.pair.num_weights
        return 1e6 * max(2 * values / BYTES_PER_S, operations / OPERATIONS_PER_S)


def rows() -> list[Row]:
    """All rows; small batches of all pairs come first."""
    return [Row(pair=one, batch=batch) for batch in BATCHES for one in PAIRS]
