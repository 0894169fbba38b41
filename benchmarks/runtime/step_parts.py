"""Where the time of a decode step goes: theirs and ours in the same rounds, and one replay kernel by kernel.

python -m benchmarks.runtime.step_parts PACK [--other PACK] [--layers 4] [--batch 1] [--seconds 60] --out FILE

The model is that of `examples/llama_decode.py` with fewer layers. `theirs` has its own MLPs, `ours` the operator, and
`none` has no MLPs: what it takes is the rest. Each is run eager, by `torch.compile`, and by `torch.compile` with Triton
kernels that are launched programmatically (`pdl`). Ours is captured with other builds of the same kernels, too. All
graphs take turns. A step that there is no time for is left out, and the file says so. It takes a card, PyTorch and
transformers.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import tuner.runtime as runtime
from tests.support.repository import ROOT
from tuner.runtime import torch_compiled

NUM_TURNS = 15
#: What turns and profiles need at the end.
PROFILES_S = 15.0
VOCABULARY = 32_000
#: Of torch.compile, by name; None is eager.
COMPILERS: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "default": {},
    "pdl": {"options": {"triton.enable_pdl": True}},
    "tuned": {"mode": "max-autotune-no-cudagraphs"},
}


def example() -> Any:
    """The module `examples/llama_decode.py`."""
    spec = importlib.util.spec_from_file_location("llama_decode", ROOT / "examples" / "llama_decode.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class NoMlp(torch.nn.Module):
    """In an MLP's place: its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As it came."""
        return x


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("sizes", ctypes.c_uint * 7),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


def name_of(cuda: ctypes.CDLL, node: int) -> str:
    """Of a graph's node: the kernel's name, or its kind."""
    kind, found, name = ctypes.c_int(), KernelNode(), ctypes.c_char_p()
    cuda.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
    if kind.value != 0 or cuda.cuGraphKernelNodeGetParams_v2(ctypes.c_void_p(node), ctypes.byref(found)):
        return f"node of kind {kind.value}"
    if found.kernel:
        cuda.cuKernelGetName(ctypes.byref(name), ctypes.c_void_p(found.kernel))
    else:
        cuda.cuFuncGetName(ctypes.byref(name), ctypes.c_void_p(found.function))
    return (name.value or b"?").decode()[:70]


def edges_of(graph: Any) -> dict[str, int]:
    """How many programmatic edges there are between kernels of which names."""
    cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
    handle = ctypes.c_void_p(graph.raw_cuda_graph())
    cuda.cuGraphGetEdges_v2(handle, None, None, None, ctypes.byref(count))
    starts, ends = (ctypes.c_void_p * count.value)(), (ctypes.c_void_p * count.value)()
    data = (ctypes.c_uint8 * 8 * count.value)()
    cuda.cuGraphGetEdges_v2(handle, starts, ends, data, ctypes.byref(count))
    found = Counter(
        f"{name_of(cuda, start)} -> {name_of(cuda, end)}"
        for start, end, of in zip(starts, ends, data, strict=True)
        if of[2] == 1
    )
    return dict(found.most_common())


def timeline(graph: Any) -> list[dict[str, Any]]:
    """One replay, kernel by kernel: its name, microseconds, and those since the end of the one before it."""
    graph.replay()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    on_card = torch.autograd.DeviceType.CUDA
    events = [one for one in profile.profiler.kineto_results.events() if one.device_type() == on_card]
    rows, end_ns = [], 0
    for one in sorted(events, key=lambda event: event.start_ns()):
        gap_us = (one.start_ns() - end_ns) / 1e3 if end_ns else 0.0
        rows.append({"kernel": one.name()[:70], "us": round(one.duration_ns() / 1e3, 2), "gap_us": round(gap_us, 2)})
        end_ns = max(end_ns, one.start_ns() + one.duration_ns())
    return rows


@dataclass
class Taken:
    """What was captured, by name, and what is known of it."""

    graphs: dict[str, Any] = field(default_factory=dict)
    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: What graphs use, and what was left out.
    kept: list[Any] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    deadline_s: float = 0.0

    def step(self, name: str, act: Callable[[], None], reserve_s: float = 0.0) -> None:
        """Acts where there is more time than `reserve_s`; tells why it came to nothing, and goes on."""
        begin_s = time.perf_counter()
        if begin_s + reserve_s > self.deadline_s:
            self.left_out[name] = "no time was left"
        else:
            try:
                act()
            except Exception as error:
                self.left_out[name] = f"{type(error).__name__}: {error}"[:600]
        print(f"{name}: {time.perf_counter() - begin_s:.1f} s {self.left_out.get(name, '')}", flush=True)

    def add(self, name: str, captured: tuple[Any, torch.Tensor], **about: Any) -> torch.Tensor:
        """Keeps a graph; its result after a replay."""
        graph, result = captured
        graph.replay()
        torch.cuda.synchronize()
        self.graphs[name], self.about[name] = graph, about
        return result.clone()


def take_turns(graphs: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Microseconds of one replay of each: the median and the range of some turns."""
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(NUM_TURNS + 2):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn >= 2:
                found[name].append(begin.elapsed_time(end) * 1e3)
    return {
        name: {"us": round(statistics.median(us), 2), "least_us": round(min(us), 2), "most_us": round(max(us), 2)}
        for name, us in found.items()
    }


class Ours:
    """A model whose MLPs are the operator, by builds and packs that may change."""

    def __init__(self, model: Any, packs: dict[str, runtime.Pack]) -> None:
        self.packs, self.mlps = packs, [layer.mlp for layer in model.model.layers]
        self.kept: list[Any] = []

    def bind(self, pack: str, rows: int = 0, batch: int = 1, **options: Any) -> None:
        """`rows`: the kernel of so many rows serves `batch` rows, where it is given."""
        from tuner.runtime import torch_op

        for mlp in self.mlps:
            weights = runtime.Weights(mlp.w1, mlp.w2, activation="silu", gated=True)
            ffn = self.packs[pack].bind(weights, **options)
            if rows:
                ffn._by_rows[batch] = ffn._by_rows[rows]
            known = torch_op._prepared[torch_op.register(ffn)]
            torch_op._prepared[mlp.number] = known
            assert torch_op.compiled is not None, "the operator in C++ was not built"
            torch_op.compiled.register(mlp.number, ffn)
            self.kept.append(ffn)


def bindings(packs: dict[str, runtime.Pack], batch: int) -> dict[str, dict[str, Any]]:
    """Ways to launch ours, by name."""
    found: dict[str, dict[str, Any]] = {
        "guarded": {"pack": "pack"},
        "measured": {"pack": "pack", "as_measured": True},
        "safe": {"pack": "pack", "safe_weights": True},
    }
    if batch < 16:
        found["of16"] = {"pack": "pack", "rows": 16, "batch": batch}
    if "other" in packs:
        found["other"] = {"pack": "other"}
        if batch < 16:
            found["other16"] = {"pack": "other", "rows": 16, "batch": batch}
    return found


def spaced(mlps: list[Any], x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """All MLPs, and a small kernel of another's between them."""

    def step() -> torch.Tensor:
        for mlp in mlps:
            y = mlp(x * 1.0)
        return y

    return step


def take(options: argparse.Namespace, taken: Taken) -> dict[str, Any]:
    """Captures everything, then times it in turns; the report."""
    torch_compiled.build()
    llama = example()
    sizes = llama.LLAMA_3_8B | {"num_hidden_layers": options.layers, "vocab_size": VOCABULARY}
    models = {name: llama.build(sizes, "cuda") for name in ("theirs", "ours", "none")}
    packs = {"pack": runtime.load(options.pack)}
    if options.other is not None:
        packs["other"] = runtime.load(options.other)
    llama.replace_mlps(models["ours"], packs["pack"])
    for layer in models["none"].model.layers:
        layer.mlp = NoMlp()
    ours = Ours(models["ours"], packs)
    batch, ways = options.batch, bindings(packs, options.batch)
    decoders = {name: llama.Decoder.of(model, batch, 1024) for name, model in models.items()}
    x = torch.randn(batch, 4096, device="cuda", dtype=torch.bfloat16)
    wanted: dict[str, torch.Tensor] = {}

    def capture_mlps(name: str) -> None:
        mlps = [layer.mlp for layer in models[name].model.layers]
        taken.add(f"mlps.{name}", llama.captured(llama.mlps_step(mlps, x)))
        taken.add(f"spaced.{name}", llama.captured(spaced(mlps, x)))

    def capture(compiler: str, name: str) -> None:
        how, model, decoder = COMPILERS[compiler], models[name], decoders[name]
        run = model
        if how is not None:
            torch.compiler.reset()
            run = torch.compile(model, fullgraph=True, dynamic=False, **how)
            taken.kept.append(run)
        for way, binding in (ways if name == "ours" else {"": {}}).items():
            if binding:
                ours.bind(**binding)
            full = f"{compiler}.{name}" + (f".{way}" if way else "")
            logits = taken.add(full, llama.captured(lambda: decoder.step(run)))
            against = wanted.setdefault("none" if name == "none" else "theirs", logits)
            edges = edges_of(taken.graphs[full])
            taken.about[full] = {"logits": llama.rel_error(logits, against), "programmatic": edges}

    for name in ("theirs", "ours"):
        taken.step(f"mlps.{name}", partial(capture_mlps, name))
    for compiler in options.compilers.split(","):
        for name in ("theirs", "ours", "none"):
            if (compiler, name) == ("tuned", "none"):
                continue
            taken.step(f"{compiler}.{name}", partial(capture, compiler, name), reserve_s=PROFILES_S)
    times = take_turns(taken.graphs)
    profiled: dict[str, Any] = {}

    def profile(name: str) -> None:
        profiled[name] = timeline(taken.graphs[name])

    for name in taken.graphs:
        if name.startswith(("default", "pdl", "eager")) and name.endswith(
            (".theirs", ".none", ".guarded", ".other", ".of16")
        ):
            taken.step(f"profile {name}", partial(profile, name))
    sentences = [sentence for pack in packs.values() for sentence in pack.aborts()]
    return {"times": times, "about": taken.about, "timelines": profiled, "aborts": sentences}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--other", type=Path, help="the same kernels, built otherwise")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--compilers", default="eager,default,pdl,tuned")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    taken = Taken(deadline_s=time.perf_counter() + options.seconds)
    with torch.inference_mode():
        found = take(options, taken)
    report = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "batch": options.batch,
        "layers": options.layers,
        "left_out": taken.left_out,
        **found,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    for name, of in found["times"].items():
        print(f"{name:28} {of['us']:9.1f} us ({of['least_us']:.1f} to {of['most_us']:.1f})")


if __name__ == "__main__":
    main()
