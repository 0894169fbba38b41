"""The compiled decode step of a model with a pack and without: in turns, and kernel by kernel.

python -m benchmarks.runtime.decode_step PACK [--other PACK] [--batch 1,16,64] [--seconds 95] [--out FILE]

The model is that of `examples/llama_decode.py`, whose rows these are, too. `theirs` has its own MLPs, `ours` the
operator. A step of 32 layers takes most of a minute to compile. So each model at each batch size has a process of its
own, and all compile at once. Then their graphs take turns on the card. What is not ready when twenty seconds are left
does not take part, and its row says so. `--kernels FILE` gets the kernels of one replay of each graph, summed up by
name, and `--other` has another pack in the same rounds. `--attention` adds a third model, whose attentions and their
projections are the pack's, too. It takes a card, PyTorch, transformers, and 18 GB of the card for each process.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.report import at_least_row, failed_row, machine_of, merge_report, results_file, write_report
from benchmarks.runtime.turns import Client, Times, take_turns
from tests.support.repository import ROOT
from tuner.core.trial.stats import median, paired_ratios, ratio_ci95
from tuner.workers.host.cards import usable_gpus
from tuner.workers.host.supervisor import GpuSupervisor

#: What turns and profiles need at the end.
TURNS_S = 20.0
#: Compilers of torch.compile, by name. `pdl`: its own Triton kernels are launched programmatically, too.
COMPILERS: dict[str, dict[str, Any]] = {"default": {}, "pdl": {"options": {"triton.enable_pdl": True}}}

#: Tokens of the cache, of which half are there.
CACHE_ROWS = 1024

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one process compiles and captures."""

    #: `theirs`, `ours`, or `both`: ours with the pack's attention.
    model: str
    #: One of COMPILERS.
    compiler: str
    batch: int
    layers: int
    #: By name; `pack` is the one that is judged.
    packs: dict[str, Path]

    def __str__(self) -> str:
        return f"{self.model}, {self.compiler}, batch {self.batch}"


def example(name: str = "llama_decode") -> Any:
    """A module of `examples`."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclass
class Graphs:
    """What a process has captured, by name: `step` and `mlps`, and the same with other packs and builds."""

    task: Task
    graphs: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    #: What the graphs use.
    kept: list[Any] = field(default_factory=list)

    def capture(self, batch: int) -> None:
        """Builds the model, compiles it, and captures all."""
        import torch

        from benchmarks.runtime.graph_nodes import edges_of

        task, llama = self.task, example()
        model = llama.build(llama.LLAMA_3_8B | {"num_hidden_layers": task.layers}, "cuda")
        decoder = llama.Decoder.of(model, batch, CACHE_ROWS)
        ways = {"": {}} if task.model == "theirs" else self._replaced(llama, model)
        mlps = [layer.mlp for layer in model.model.layers]
        x = torch.randn(batch, model.config.hidden_size, device="cuda", dtype=model.dtype)
        run = torch.compile(model, fullgraph=True, dynamic=False, **COMPILERS[task.compiler])
        self.kept += [model, decoder, run, x]
        for way, binding in ways.items():
            if binding:
                self._bind(mlps, **binding)
            end = f".{way}" if way else ""
            graph, logits = llama.captured(lambda: decoder.step(run))
            self.graphs[f"step{end}"], self.graphs[f"mlps{end}"] = graph, llama.captured(llama.mlps_step(mlps, x))[0]
            graph.replay()
            self.about[f"step{end}"] = {"logits": logits.float().cpu().numpy(), "programmatic_edges": edges_of(graph)}

    def _replaced(self, llama: Any, model: Any) -> dict[str, dict[str, Any]]:
        """Puts the operator in place of the MLPs; ways to launch it, of which the first is bound."""
        import tuner.runtime as runtime

        packs = {name: runtime.load(path) for name, path in self.task.packs.items()}
        llama.replace_mlps(model, packs["pack"])
        if self.task.model == "both":
            example("llama_attention").replace_attentions(model, packs["pack"], [(self.task.batch, CACHE_ROWS)])
        self.kept.append(packs)
        more = {name: {"pack": pack} for name, pack in packs.items() if name != "pack"}
        return {"": {}, "measured": {"pack": packs["pack"], "as_measured": True}, **more}

    def _bind(self, mlps: Sequence[Any], pack: Any, **options: Any) -> None:
        """Lets the operators of a compiled model launch otherwise from now on: of one weight's kernels the last run."""
        import tuner.runtime as runtime
        from tuner.runtime import torch_op

        for mlp in mlps:
            ffn = pack.bind(runtime.Weights(mlp.w1, mlp.w2, activation="silu", gated=True), **options)
            torch_op.register(ffn)

    def before(self, name: str) -> None:
        """Nothing: a step leaves its cache as it was."""

    def kernels(self, name: str) -> list[dict[str, Any]]:
        """Kernels of one replay, summed up by name."""
        from benchmarks.runtime.graph_nodes import by_kernel, timeline

        return by_kernel(timeline(self.graphs[name]), self.task.layers)


def client_of(task: Task) -> Client:
    """Starts a process that captures the task's graphs."""
    client = Client(str(task), partial(Graphs, task))
    client.begin(task.batch)
    return client


def names_of(client: Client) -> list[str]:
    """Of the graphs of a process: steps, and MLPs alone."""
    return [name for step in client.about for name in (step, step.replace("step", "mlps"))]


def rows_of(task: Task, theirs: Client, ours: Client, times: Times, llama: Any) -> list[Row]:
    """What is checked of one batch size, compiled one way."""
    batch, compiler = task.batch, task.compiler
    at = f"llama-3-8b, batch {batch}" + ("" if compiler == "default" else f", {compiler}")
    check = f"{at}: compiled step" + (", the attention by the pack, too" if task.model == "both" else "")
    if failure := theirs.failure or ours.failure:
        return [failed_row(check, failure)]
    before, after = theirs.about["step"], ours.about["step"]
    before_us, after_us = times[theirs.name, "step"], times[ours.name, "step"]
    ratios, edges = paired_ratios(before_us, after_us), sum(after["programmatic_edges"].values())
    bar = 1.0 if batch != 1 else llama.PROGRAMMATIC_BAR if edges else llama.COMPILED_BAR
    raw = {
        "ci95": [round(end, 4) for end in ratio_ci95(ratios)],
        "before_ms": milliseconds(before_us),
        "after_ms": milliseconds(after_us),
        "mlps_before_ms": milliseconds(times[theirs.name, "mlps"]),
        "mlps_after_ms": milliseconds(times[ours.name, "mlps"]),
        "otherwise_ms": {name: milliseconds(times[ours.name, name]) for name in ours.about if name != "step"},
        "programmatic_edges": edges,
        "logits": round(rel_error(after["logits"], before["logits"]), 6),
    }
    return [at_least_row(check, median(ratios), bar, **raw)]


def milliseconds(us: list[float]) -> float:
    """The median of some turns."""
    return round(median(us) / 1e3, 4)


def rel_error(found: Any, wanted: Any) -> float:
    """Of the difference's norm to the wanted one's; arrays of numpy."""
    return math.sqrt(((found - wanted) ** 2).sum() / (wanted**2).sum())


def kernels_of(clients: Sequence[Client], times: Times) -> list[dict[str, Any]]:
    """Of each graph: its time, its programmatic edges, and its kernels."""
    return [
        {
            "task": client.name,
            "graph": name,
            "us": round(median(times[client.name, name]), 2),
            "programmatic_edges": client.about.get(name, {}).get("programmatic_edges"),
            "kernels": client.ask("kernels", name),
        }
        for client in clients
        for name in names_of(client)
        if "measured" not in name
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--other", type=Path, help="another pack of the same shape")
    parser.add_argument("--batch", default="1,16,64", help="sequences of a step, with commas between them")
    parser.add_argument("--compilers", default="default", help=f"of {', '.join(COMPILERS)}, with commas between them")
    parser.add_argument("--attention", action="store_true", help="a model with the pack's attention, too")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=95.0)
    parser.add_argument("--kernels", type=Path, help="where the kernels of each graph go")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    deadline_s = time.perf_counter() + options.seconds - TURNS_S
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    packs = {"pack": options.pack} | ({"other": options.other} if options.other else {})
    models = ("ours", "both") if options.attention else ("ours",)
    asked = [(compiler, int(batch)) for compiler in options.compilers.split(",") for batch in options.batch.split(",")]
    tasks = [
        [Task(model=model, compiler=compiler, batch=batch, layers=options.layers, packs=packs) for model in models]
        for compiler, batch in asked
    ]
    pairs = []
    for of_one in tasks:
        theirs = client_of(replace(of_one[0], model="theirs"))
        pairs += [(task, theirs, client_of(task)) for task in of_one]
    clients = list({id(client): client for _, *sides in pairs for client in sides}.values())
    try:
        with tempfile.TemporaryDirectory() as name, closing(GpuSupervisor(usable_gpus()[0], Path(name))) as card:
            machine, target_id = machine_of(card.environment()), card.target.id
        for client in clients:
            client.wait(deadline_s - time.perf_counter())
        times = take_turns([client for client in clients if not client.failure], names_of)
        llama = example()
        rows = [row for task, theirs, ours in pairs for row in rows_of(task, theirs, ours, times, llama)]
        print(*rows, sep="\n", flush=True)
        merge_report(options.out or results_file(target_id, "take_home"), rows, machine)
        if options.kernels is not None:
            write_report(options.kernels, kernels_of(clients, times), {**machine, "layers": options.layers})
    finally:
        for client in clients:
            client.end()


if __name__ == "__main__":
    main()
