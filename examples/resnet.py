"""ResNet-50 whose parts are tuner's launches, in a CUDA graph, compared with PyTorch's best.

    tuner-client tune-model examples/resnet50.json --m 1 -o resnet.tunerpack
    python examples/resnet.py --pack resnet.tunerpack --images 1

Each part is a program of the pack, in one launch or a few: the first convolution with its max pool; the sixteen blocks
of the four stages, each three convolutions with bias and ReLU, the added image, and in a stage's first block the
convolution of that image; and the average pool with the classifier. PyTorch computes the parts for which the pack uses
the library or has no program. The first program reads pixels of four channels: images are copied with a channel of
zeros, which is part of the measured time.

The model has random weights, with batch norm folded into filters and biases. PyTorch's best is the fastest of cuDNN's
fused convolutions (benchmark on, channels last), the same with images of four channels, and, unless `--no-compile`,
`torch.compile` with max-autotune, each in a CUDA graph. The output is the microseconds per inference, all timed in the
same rounds, and of each part, as the difference of two graphs, one of which ends before that part; the relative
distance of the scores from PyTorch's; and whether the top class is the same. `--json` is written before
`torch.compile`, which takes minutes, and again after it.

Without a GPU, `--formula` computes the parts with PyTorch's operators instead of the launches, which tests the
replacement but not the times.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

#: Source: He et al., CVPR 2016, table 1: blocks of each stage, and channels within a block.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
#: Ratio of a block's output channels to those within it; input channels of the first stage; classes.
WIDEN, STEM, CLASSES = 4, 64, 1000
#: Maximum relative error of a correct result: sixteen blocks, each rounded to fp16.
MOST_ERROR = 2e-2
ROUNDS, REPLAYS = 40, 5
#: Channels of the first convolution's images, and with the channel of zeros that makes a pixel 8 bytes.
COLOURS, WIDE_COLOURS = 3, 4


def convolution(channels: int, filters: int, kernel: int, stride: int = 1, gain: float = 1.0) -> nn.Conv2d:
    """A convolution with random weights as in He et al., which preserve the magnitude of activations."""
    made = nn.Conv2d(channels, filters, kernel, stride, kernel // 2)
    nn.init.normal_(made.weight, std=gain * (2 / (channels * kernel**2)) ** 0.5)
    nn.init.normal_(made.bias, std=0.1)
    return made


def fused(conv: nn.Conv2d, x: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
    """A convolution with its bias and ReLU, and an image added before the ReLU; on a GPU, in one cuDNN kernel."""
    if x.is_cuda and not torch.compiler.is_compiling():
        form = (conv.stride, conv.padding, (1, 1), 1)
        if added is None:
            return torch.cudnn_convolution_relu(x, conv.weight, conv.bias, *form)
        return torch.cudnn_convolution_add_relu(x, conv.weight, added, 1.0, conv.bias, *form)
    made = conv(x)
    return torch.relu(made if added is None else made + added)


class Bottleneck(nn.Module):
    """A block; `shortcut` is present if the added image is not the input."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = convolution(channels, width, 1)
        self.conv2 = convolution(width, width, 3, stride)
        self.conv3 = convolution(width, WIDEN * width, 1, gain=0.3)
        same = channels == WIDEN * width
        self.shortcut = None if same else convolution(channels, WIDEN * width, 1, stride, gain=0.7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added = x if self.shortcut is None else self.shortcut(x)
        return fused(self.conv3, fused(self.conv2, fused(self.conv1, x)), added)


class Stem(nn.Module):
    """The first convolution and the max pool. `is_wide`: it first copies images, with a channel of zeros."""

    def __init__(self, *, is_wide: bool = False) -> None:
        super().__init__()
        self.conv = convolution(WIDE_COLOURS if is_wide else COLOURS, STEM, 7, 2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.widened: torch.Tensor | None = None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.pool(fused(self.conv, self.widen(images) if self.conv.in_channels == WIDE_COLOURS else images))

    def widen(self, images: torch.Tensor) -> torch.Tensor:
        """The images with a channel of zeros, always in the same memory."""
        if self.widened is None:
            self.widened = nn.functional.pad(images, (0, 0, 0, 0, 0, 1)).to(memory_format=torch.channels_last)
        self.widened[:, :COLOURS].copy_(images)
        return self.widened

    def of_wide_images(self) -> Stem:
        """The same for images with a channel of zeros."""
        made = Stem(is_wide=True).to(self.conv.weight)
        with torch.no_grad():
            made.conv.weight.copy_(nn.functional.pad(self.conv.weight, (0, 0, 0, 0, 0, 1)))
            made.conv.bias.copy_(self.conv.bias)
        return made.to(memory_format=torch.channels_last)


class Head(nn.Module):
    """The average pool and the classifier, which is a convolution of one pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.classes = nn.Linear(channels, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classes(x.mean((2, 3)))


class ResNet50(nn.Module):
    """Takes images [n, 3, 224, 224]."""

    def __init__(self, parts: Sequence[nn.Module] = ()) -> None:
        """Of `parts`, or with random weights."""
        super().__init__()
        blocks, channels = list[nn.Module](), STEM
        for stage, (count, width) in enumerate(STAGES if not parts else ()):
            for place in range(count):
                blocks.append(Bottleneck(channels, width, 2 if stage > 0 and place == 0 else 1))
                channels = WIDEN * width
        self.parts = nn.Sequential(*(parts or [Stem(), *blocks, Head(channels)]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.parts(images)


def pixels(image: torch.Tensor) -> torch.Tensor:
    """[pixels, channels] of an image in channels-last layout, in the same memory."""
    return image.permute(0, 2, 3, 1).reshape(-1, image.shape[1])


def tensors_of(part: nn.Module) -> dict[str, torch.Tensor]:
    """Filters [filters, kernel x kernel x channels] and biases, by the names of the program."""
    found = {}
    for name, layer in part.named_children():
        if (weight := getattr(layer, "weight", None)) is None:
            continue
        filters = weight.detach().permute(0, 2, 3, 1) if weight.dim() == 4 else weight.detach()
        found[f"{name}.w"] = filters.reshape(len(weight), -1).contiguous()
        found[f"{name}.bias"] = layer.bias.detach()
    return found


def ops_of(part: nn.Module) -> tuple[str, ...]:
    """The names of the program's ops, the one that writes its output last."""
    if isinstance(part, Head):
        return ("pool", "classes")
    names = [name for name, _ in part.named_children()]
    return tuple(sorted(names, key=lambda name: name == "conv3"))


class OfPack(nn.Module):
    """A part computed by a pack's program, which writes to a tensor of its own."""

    def __init__(self, program: Any, part: nn.Module, like: torch.Tensor) -> None:
        """`like`: what the part makes."""
        super().__init__()
        self.program, self.weights, self.output = program, tensors_of(part), ops_of(part)[-1]
        self.widen = part.widen if isinstance(part, Stem) else lambda x: x
        self.out = torch.empty_like(like)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = pixels(self.out) if self.out.dim() == 4 else self.out
        self.program({**self.weights, "x": pixels(self.widen(x)), self.output: out})
        return self.out


@dataclass(frozen=True)
class Formula:
    """Replaces a program on any device; computes the same with PyTorch's operators."""

    part: nn.Module
    shape: tuple[int, ...]

    def __call__(self, tensors: dict[str, torch.Tensor]) -> None:
        n, _, height, width = self.shape
        x = tensors["x"].reshape(n, height, width, -1).permute(0, 3, 1, 2)
        output = ops_of(self.part)[-1]
        if isinstance(self.part, Head):
            made = nn.functional.linear(x.mean((2, 3)), tensors["classes.w"], tensors["classes.bias"])
            tensors[output].copy_(made)
            return
        by: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        for name, conv in ((name, one) for name, one in self.part.named_children() if isinstance(one, nn.Conv2d)):
            kernel = conv.kernel_size[0]
            weight = tensors[f"{name}.w"].reshape(conv.out_channels, kernel, kernel, -1).permute(0, 3, 1, 2)
            bias, form = tensors[f"{name}.bias"], (conv.stride, conv.padding)
            by[name] = lambda a, w=weight, b=bias, f=form: nn.functional.conv2d(a, w, b, *f)
        if isinstance(self.part, Stem):
            made = self.part.pool(torch.relu(by["conv"](x)))
        else:
            inside = torch.relu(by["conv2"](torch.relu(by["conv1"](x))))
            made = torch.relu(by["conv3"](inside) + (by["shortcut"](x) if "shortcut" in by else x))
        tensors[output].copy_(pixels(made.contiguous(memory_format=torch.channels_last)))


def program_of(pack: Any, part: nn.Module, shape: Sequence[int]) -> Any:
    """The pack's program for a part that reads images of this shape; None if it has none, or uses the library."""
    n, channels, height, width = shape
    weights, is_stem = tensors_of(part), isinstance(part, Stem)
    halved = -(-height // 2) * -(-width // 2)
    first = n * (halved if is_stem else 1 if isinstance(part, Head) else height * width)
    for number, ops in enumerate(pack.layers):
        if set(ops) != set(ops_of(part)):
            continue
        try:
            found = pack.chain(*ops, rows=first, number=number)
        except RuntimeError:  # this program is for other images
            continue
        if found is None or found.shape("x") != (n * height * width, channels):
            continue
        if all(found.shape(name) == tuple(tensor.shape) for name, tensor in weights.items()):
            return found
    return None


def with_launches(model: ResNet50, images: torch.Tensor, find: Callable[[nn.Module, Sequence[int]], Any]) -> ResNet50:
    """The same model, with each part replaced by what `find` returns for it and its input shape, if anything."""
    x, parts = images, list[nn.Module]()
    for number, part in enumerate(model.parts):
        used = part.of_wide_images() if isinstance(part, Stem) else part
        program = find(used, (len(x), WIDE_COLOURS, *x.shape[2:]) if number == 0 else x.shape)
        x = part(x)
        parts.append(part if program is None else OfPack(program, used, x))
    others = [str(number) for number, part in enumerate(parts) if not isinstance(part, OfPack)]
    print(
        f"{len(parts) - len(others)} of {len(parts)} parts are launches"
        + ", but not " * bool(others)
        + ", ".join(others)
    )
    return ResNet50(parts)


def captured(run: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of a call, captured after three warm-up calls."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def microseconds(graphs: dict[str, torch.cuda.CUDAGraph]) -> dict[str, float]:
    """Median times of replays of each graph, all in the same rounds, after a delay that hides the host's time."""
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(ROUNDS + 2):
        for name, graph in graphs.items():
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(1_000_000)
            before.record()
            for _ in range(REPLAYS):
                graph.replay()
            after.record()
            after.synchronize()
            samples[name] += [1e3 * before.elapsed_time(after) / REPLAYS] if turn > 1 else []
    return {name: statistics.median(found) for name, found in samples.items()}


def count(text: str) -> int:
    """Parses a number of at least 1.

    Raises:
        argparse.ArgumentTypeError: it is not such a number.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text!r}, but must be a whole number of at least 1")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compares outputs, then times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, help="with programs of the blocks")
    parser.add_argument("--images", type=count, default=1)
    parser.add_argument("--size", type=count, default=224, help="rows and columns of an image")
    parser.add_argument("--no-compile", action="store_true", help="compare only with cuDNN, without torch.compile")
    parser.add_argument("--json", type=Path, help="writes what is printed")
    parser.add_argument("--formula", action="store_true", help="PyTorch instead of the launches, on the CPU")
    options = parser.parse_args(arguments)
    if options.formula is (options.pack is not None):
        parser.error("give --pack or --formula")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device, dtype = ("cpu", torch.float32) if options.formula else ("cuda", torch.float16)
    model = ResNet50().to(device, dtype).to(memory_format=torch.channels_last).eval()
    shape = (options.images, COLOURS, options.size, options.size)
    images = torch.randn(shape, device=device, dtype=dtype).to(memory_format=torch.channels_last)
    with torch.inference_mode():
        if options.formula:
            ours = with_launches(model, images, lambda part, read: Formula(part, tuple(read)))
        else:
            import tuner.runtime

            pack = tuner.runtime.load(options.pack)
            ours = with_launches(model, images, lambda part, read: program_of(pack, part, read))
        found = compare(ours(images), model(images))
        num_launches = sum(isinstance(part, OfPack) for part in ours.parts)
        found = {"images": options.images, "launched_parts": num_launches, "parts": len(ours.parts)} | found
        if not options.formula:
            found |= time_all(ours, model, images, is_compiled=False)
            found |= {"parts_us": {"ours": time_parts(ours, images), "cudnn": time_parts(model, images)}}
            write(options.json, found)
            if not options.no_compile:
                found |= time_all(ours, model, images, is_compiled=True)
    write(options.json, found)


def write(path: Path | None, found: dict[str, Any]) -> None:
    """Writes what was found, if there is a path."""
    if path is not None:
        path.write_text(json.dumps(found))


def compare(ours: torch.Tensor, theirs: torch.Tensor) -> dict[str, Any]:
    """Prints the distance of the scores.

    Raises:
        SystemExit: the distance is too large.
    """
    error = float((ours.float() - theirs.float()).norm() / theirs.float().norm())
    same = int((ours.argmax(1) == theirs.argmax(1)).sum())
    print(f"relative error {error:.2e}; the top class is the same in {same} of {len(ours)}")
    if not error < MOST_ERROR:
        raise SystemExit(f"the scores differ by {error:.2e}; at most {MOST_ERROR} is allowed")
    return {"rel_error": error, "same_first_class": same}


def time_all(ours: ResNet50, model: ResNet50, images: torch.Tensor, *, is_compiled: bool) -> dict[str, Any]:
    """Prints each model's microseconds, and ours relative to the fastest of the others."""
    stem, *others = model.parts
    wide = ResNet50([stem.of_wide_images(), *others])
    ways: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours(images),
        "cudnn": lambda: model(images),
        "cudnn of four channels": lambda: wide(images),
    }
    if is_compiled:
        compiled = torch.compile(model, mode="max-autotune-no-cudagraphs")
        ways["torch.compile"] = lambda: compiled(images)
    found = microseconds({name: captured(run) for name, run in ways.items()})
    best = min(us for name, us in found.items() if name != "ours")
    print(", ".join(f"{name} {us:.1f} us" for name, us in found.items()))
    print(f"ours is {best / found['ours']:.3f} times as fast as PyTorch's best")
    return {"us": found, "speedup": best / found["ours"]}


def time_parts(model: ResNet50, images: torch.Tensor) -> list[float]:
    """Microseconds that each part adds to a graph of the parts before it."""
    begun = [model.parts[: count + 1] for count in range(len(model.parts))]
    graphs = {str(count): captured(lambda run=run: run(images)) for count, run in enumerate(begun)}
    upto = [0.0, *microseconds(graphs).values()]
    found = [after - before for before, after in pairwise(upto)]
    print("microseconds of each part: " + ", ".join(f"{us:.1f}" for us in found))
    return found


if __name__ == "__main__":
    main()
