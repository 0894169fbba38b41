"""One arm of a comparison inside vLLM, in a process with its own compile cache: it starts vLLM, then measures what is
requested, until its input ends.

python -P benchmarks/runtime/vllm_arm.py ARM --model DIR [--batches 1,8,32] [--settings JSON] [--memory-gib 30]

ARM is `stock` or `again`, which are vLLM alone, or, with TUNER_PACK set and the wheel installed, `mlps`, `norms` or
`layers`; the latter two include the MLPs. It runs with the Python that has vLLM, and imports nothing from this
repository. A line of its input is JSON: `{"ask": "step", "batch": 8}`, `trace`, `first_token`, `mixed`, `logits` with a
`file`, or in `stock` `reference` with `files`, by arm. Each is answered by a line that begins with `ARM`.

A step's time is the mean over one run. `trace` uses PyTorch's profiler, in separate runs: how long kernels ran in a
step (programmatic launches overlap), how many were a pack's, how much each kernel adds to a step (`kernels_us`), and
the same for a single prompt (`first_gpu_ms`, `first_kernels_us`) and for a whole `mixed` run (`mixed_gpu_ms`). `mixed`
runs decode steps while prompts arrive. `first_token_ms` has the time of each prompt alone. Both are short, since arms
take turns with them in many rounds, and run on one CPU. No arriving prompt begins like an earlier one, whose keys vLLM
would have cached. `logits` are those of decode steps with given tokens, for the first sequences (`vllm_logits.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import accumulate, count
from pathlib import Path
from typing import Any

#: Steps of a run: skipped at its start, timed, and skipped at its end.
BEFORE, TIMED, BEHIND = 16, 128, 4
#: New tokens of the shorter traced run; the other one has twice as many.
TRACED = 16
#: Steps whose logits are compared, and the maximum number of sequences.
COMPARED, SEQUENCES = 64, 4
#: New tokens of each sequence of a mixed run, and steps between two arriving prompts.
MIXED, EVERY = 24, 4
#: Prompts in turn whose first tokens are timed, and that are traced; and the first token of a prompt that no other run
#: has.
FIRSTS, TRACED_FIRSTS, NEW = 4, 8, 1000
#: Arms without our plugin.
ALONE = ("stock", "again")
#: Prefixes of the names of a pack's kernels.
OURS = "tuner_"
#: Number of listed kernels (those with the most time), and length of their names.
LISTED, KEPT = 16, 90

Json = dict[str, Any]


def started(arm: str, model: str, batches: list[int], settings: Json) -> Any:
    """Starts vLLM with the model."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from vllm import LLM

    _draw_weights_of_a_models_size()
    own = {"load_format": settings.get("load_format", "dummy")}  # by default random weights
    extra = own | {"layers": arm == "layers", "norms": arm == "norms"}
    inner = own if arm in ALONE else {"load_format": "tuner", "model_loader_extra_config": extra}
    common = {"skip_tokenizer_init": True, "seed": 0, "max_num_seqs": max(batches)}
    return LLM(model=model, **(common | settings | inner))


#: Weights that vLLM converts to a different form, by name: those of a model on a CPU, and quantised ones as elements.
_drawn: dict[str, Any] = {}
#: 4-bit weights are their codes minus eight, times a factor per group, as GPTQ stores them.
_ZEROS, _CODES_A_WORD, _HIGHEST = 0x77777777, 8, 0xF


def _draw_weights_of_a_models_size() -> None:
    """Draws weights that keep a stream's size, and norms near 1. vLLM draws all near 0.001: logits would be similar."""
    import torch
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    plain = DummyModelLoader.load_weights

    def load_weights(self: Any, model: Any, *others: Any) -> None:
        plain(self, model, *others)
        for name, weight in model.named_parameters():
            generator = torch.Generator(device=weight.device).manual_seed(zlib.crc32(name.encode()))
            if weight.is_floating_point():
                # fp8 cannot be drawn in place; with its scales, elements are of the same size as in 16 bits.
                drawn, size = (weight.data, 1) if weight.itemsize > 1 else (weight.data.half(), 6000)
                weight.data.copy_(drawn.uniform_(*_range_of(name), generator=generator).mul_(size))
            else:
                weight.data.random_(-(2**31), 2**31 - 1, generator=generator)
            if not weight.is_cuda:
                _drawn[name] = weight.data.clone()
        for name, module in model.named_modules():
            if hasattr(module, "qweight"):
                _draw_symmetric(name, module)

    DummyModelLoader.load_weights = load_weights


def _range_of(name: str) -> tuple[float, float]:
    known = {"norm": (0.8, 1.2), "scales": (0.002, 0.006), "weight_scale": (1e-4, 2e-4)}
    return next((drawn for part, drawn in known.items() if part in name), (-0.03, 0.03))


def _draw_symmetric(name: str, module: Any) -> None:
    """Makes a product quantised by GPTQ symmetric, with its groups in order; its elements are kept on the host."""
    import torch

    module.qzeros.data.fill_(_ZEROS)
    words, scales = module.qweight.data, module.scales.data
    k = words.shape[0] * _CODES_A_WORD
    group = torch.arange(k, device=words.device) // (k // scales.shape[0])
    module.g_idx.data.copy_(group)
    shifts = 4 * torch.arange(_CODES_A_WORD, device=words.device)[None, :, None]
    codes = (words[:, None] >> shifts & _HIGHEST).view(k, -1)
    _drawn[f"{name}.weight"] = ((codes - 8) * scales[group]).T.to(scales.dtype).cpu()


class Runs:
    """Runs of one arm, with the same prompts as the other arms."""

    def __init__(self, llm: Any, prompt: int) -> None:
        self._llm, self._prompt = llm, prompt
        self._new, self._mixed = count(NEW), count()

    def prompts(self, batch: int, salt: int) -> list[list[int]]:
        """Token ids that are determined by `batch` and `salt`."""
        return [[(7 * i + 13 * j + salt) % 400 + 5 for j in range(self._prompt)] for i in range(batch)]

    def run(self, prompts: list[list[int]], tokens: int) -> list[Any]:
        """The outputs for the prompts."""
        from vllm import SamplingParams

        asked = SamplingParams(max_tokens=tokens, min_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
        found = self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], asked, use_tqdm=False)
        return [one.outputs[0] for one in found]

    def step(self, batch: int) -> Json:
        """Milliseconds of a decode step."""
        engine, ends = self._llm.llm_engine, []
        plain = engine.step

        def step() -> Any:
            found = plain()
            ends.append(time.perf_counter())
            return found

        engine.step = step
        try:
            self.run(self.prompts(batch, 0), BEFORE + TIMED + BEHIND)
        finally:
            del engine.step
        return {"ms_step": round(1e3 * (ends[BEFORE + TIMED] - ends[BEFORE]) / TIMED, 4)}

    def first_token(self) -> Json:
        """Milliseconds until the first token of a sequence alone, for each of some prompts."""
        found = []
        with on_one_cpu():
            for _ in range(FIRSTS):
                prompt = self._new_prompt()
                begin = time.perf_counter()
                self.run([prompt], 1)
                found.append(round(1e3 * (time.perf_counter() - begin), 3))
        return {"first_token_ms": found}

    def mixed(self, batch: int) -> Json:
        """Milliseconds of a run in which `batch` sequences decode while new prompts arrive, one every `EVERY` steps:
        its batches mix prompts and decode steps."""
        engine, number = self._llm.llm_engine, next(self._mixed)
        for place, prompt in enumerate(self.prompts(batch, 0)):
            self._add(f"decodes-{number}-{place}", prompt, MIXED)
        with on_one_cpu():
            begin, steps = time.perf_counter(), 0
            while engine.has_unfinished_requests():
                if steps % EVERY == 0 and steps < MIXED // 2:
                    self._add(f"arrives-{number}-{steps}", self._new_prompt(), 2)
                engine.step()
                steps += 1
            end = time.perf_counter()
        return {"mixed_ms": round(1e3 * (end - begin), 3)}

    def _new_prompt(self) -> list[int]:
        """A prompt that begins like no other."""
        return [next(self._new), *self.prompts(1, 0)[0][1:]]

    def _add(self, name: str, prompt: list[int], tokens: int) -> None:
        from vllm import SamplingParams

        asked = SamplingParams(max_tokens=tokens, min_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
        self._llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, asked)

    def trace(self, batch: int) -> Json:
        """Milliseconds in which a kernel runs, and launches of the pack's kernels; None and 0 without a card."""
        import torch

        if not torch.cuda.is_available():
            missing = dict.fromkeys(("gpu_ms", "first_gpu_ms", "mixed_gpu_ms"))
            return missing | {"launches_step": 0, "kernels_us": {}, "first_kernels_us": {}}
        busy, ours, shares = [], [], []
        for tokens in (TRACED, 2 * TRACED):
            self.run(self.prompts(batch, 0), tokens)  # the prefix cache has the prompts: both prefills are the same
            events = self._events(partial(self.run, self.prompts(batch, 0), tokens))
            busy.append(union_ns((begin, ns) for _, begin, ns in events))
            ours.append(sum(name.startswith(OURS) for name, *_ in events))
            shares.append(shares_ns(events))
        mixed_ns = union_ns((begin, ns) for _, begin, ns in self._events(partial(self.mixed, batch)))
        events = self._events(lambda: [self.run([self._new_prompt()], 1) for _ in range(TRACED_FIRSTS)])
        first_ns, firsts = union_ns((begin, ns) for _, begin, ns in events), shares_ns(events)
        less, more = shares
        return {
            "gpu_ms": round((busy[1] - busy[0]) / 1e6 / TRACED, 4),
            "launches_step": round((ours[1] - ours[0]) / TRACED, 2),
            "kernels_us": longest({name: (ns - less.get(name, 0)) / 1e3 / TRACED for name, ns in more.items()}),
            "first_gpu_ms": round(first_ns / 1e6 / TRACED_FIRSTS, 4),
            "first_kernels_us": longest({name: ns / 1e3 / TRACED_FIRSTS for name, ns in firsts.items()}),
            "mixed_gpu_ms": round(mixed_ns / 1e6, 4),
        }

    @staticmethod
    def _events(run: Callable[[], Any]) -> list[tuple[str, int, int]]:
        """The GPU's activities during a call of `run`: names, begins and durations."""
        import torch

        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
        events = profile.profiler.kineto_results.events()
        on_card = [event for event in events if event.device_type() == torch.autograd.DeviceType.CUDA]
        return [(event.name()[:KEPT], event.start_ns(), event.duration_ns()) for event in on_card]

    def logits(self, batch: int, file: str) -> Json:
        """Writes the logits of decode steps with given tokens, [steps, sequences, words], and the tokens that they
        follow; or a `problem` if different tokens were produced."""
        import torch

        # All sequences have the same tokens except the last, which differs in each and so identifies its row: vLLM
        # orders rows arbitrarily.
        forced = torch.tensor([(17 * t) % 400 + 5 for t in range(COMPARED + 1)]).repeat(batch, 1)
        forced[:, COMPARED] = 5 + torch.arange(batch)
        found: list[Any] = []
        seen = Counter[int]()

        def at_each_step(model: Any) -> None:
            plain = model.compute_logits

            def compute_logits(*given: Any, **how: Any) -> Any:
                logits = plain(*given, **how)
                seen[len(logits)] += 1
                if len(found) <= COMPARED and len(logits) == batch:
                    found.append(logits.cpu())
                    logits = torch.full_like(logits, -1e4)
                    logits.scatter_(1, forced[:, len(found) - 1 : len(found)].to(logits.device), 0.0)
                return logits

            model.compute_logits = compute_logits

        def as_before(model: Any) -> None:
            del model.compute_logits

        self._llm.apply_model(at_each_step)
        outputs = self.run(self.prompts(batch, COMPARED), COMPARED + 1)
        self._llm.apply_model(as_before)
        tokens = torch.tensor([list(one.token_ids) for one in outputs])
        rows = tokens[:, COMPARED] - 5
        if not torch.equal(tokens[:, :COMPARED], forced[:, :COMPARED]) or sorted(rows.tolist()) != [*range(batch)]:
            steps = ", ".join(f"{count} of {rows}" for rows, count in seen.items())
            return {"problem": f"vLLM produced different tokens than the given ones; logits had these rows: {steps}"}
        # The first logits are prefill's.
        prompts = torch.tensor(self.prompts(batch, COMPARED)[:SEQUENCES], dtype=torch.int64)
        logits = torch.stack([one[rows[:SEQUENCES]].float() for one in found[1:]])
        saved = {"logits": logits, "prompts": prompts, "forced": forced[:SEQUENCES, :COMPARED]}
        torch.save(saved, file)
        return {"steps": len(found) - 1}


def main() -> None:
    """Runs the arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arm", choices=(*ALONE, "mlps", "norms", "layers"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--batches", default="1,8,32", help="with commas")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--memory-gib", type=float, help="of the card, that PyTorch may allocate")
    parser.add_argument("--settings", type=json.loads, default={}, help="of vllm.LLM, as JSON")
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batches.split(",")]
    if options.arm in ALONE:
        os.environ.pop("TUNER_PACK", None)
    if options.memory_gib:
        limit_memory(options.memory_gib)
    begin = time.perf_counter()
    llm = started(options.arm, options.model, batches, options.settings)
    found: Json = {"arm": options.arm, "start_s": round(time.perf_counter() - begin, 1)}
    if options.arm == "layers" and not _calls().get("layers"):
        raise SystemExit("no decode step runs the pack's layers: vLLM's log has the reasons")
    runs = Runs(llm, options.prompt)
    runs.run(runs.prompts(1, 0), 1)
    answer(found | {"calls": _calls(), "machine": machine()})
    for line in sys.stdin:
        asked = json.loads(line)
        answer(asked | _answered(runs, llm, Path(options.model), asked))


def limit_memory(gib: float) -> None:
    """Limits the memory of this arm: the arm that needs too much ends, and not the one that allocates last."""
    import torch

    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(gib * 2**30 / total)


@contextlib.contextmanager
def on_one_cpu() -> Iterator[None]:
    """Keeps this thread on the last CPU meanwhile, in every arm, since the host's share of a time differs between
    CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def union_ns(spans: Iterable[tuple[int, int]]) -> int:
    """The total time during which any of the `spans` is active, from begins and durations."""
    total, until = 0, 0
    for begin, duration in sorted(spans):
        total += max(0, begin + duration - max(begin, until))
        until = max(until, begin + duration)
    return total


def shares_ns(kernels: Iterable[tuple[str, int, int]]) -> dict[str, int]:
    """The time that the kernels of each name add to a run, given names, begins and durations: from the end of the
    previous kernel to their own end. "idle" is the time in which no kernel ran."""
    by_end = sorted((begin + duration, begin, name) for name, begin, duration in kernels)
    # The earliest begin of each kernel and of all that end after it.
    first_begins = [*accumulate((begin for _, begin, _ in reversed(by_end)), min)][::-1]
    found = Counter({"idle": 0})
    until = min(first_begins, default=0)
    for (end, _, name), first in zip(by_end, first_begins, strict=True):
        found["idle"] += (idle := max(0, first - until))
        found[name] += end - until - idle
        until = end
    return dict(found)


def longest(us: Mapping[str, float]) -> dict[str, float]:
    """The kernels with the most time, longest first, rounded."""
    return {name: round(one, 1) for name, one in sorted(us.items(), key=lambda one: -one[1])[:LISTED]}


def answer(found: Json) -> None:
    """Prints an answer."""
    print("ARM", json.dumps(found), flush=True)


def _answered(runs: Runs, llm: Any, model: Path, asked: Json) -> Json:
    if asked["ask"] == "reference":
        weights = llm.apply_model(lambda inner: dict(inner.named_parameters()))[0] | _drawn
        if llm.llm_engine.model_config.quantization and not _drawn:
            return {"arms": {}}  # the values of loaded quantised weights are not known here
        return dict(_logits()["compared"](json.loads((model / "config.json").read_text()), weights, asked["files"]))
    return dict(getattr(runs, asked["ask"])(**{name: asked[name] for name in ("batch", "file") if name in asked}))


@cache
def _logits() -> Json:
    """The module `vllm_logits.py`, which -P hides."""
    return runpy.run_path(str(Path(__file__).with_name("vllm_logits.py")))


def _calls() -> Json:
    """The number of MLPs, and of layers of steps, that ran or were captured, by implementation."""
    if (module := sys.modules.get("tuner.vllm.operator")) is None:
        return {}
    return dict(module.calls)


def machine() -> Json:
    """The machine's facts in a report."""
    import torch
    import vllm

    words = driver.read_text().split("  ") if (driver := Path("/proc/driver/nvidia/version")).exists() else []
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "driver": words[1].split()[0] if len(words) > 1 else "",
        "cuda": torch.version.cuda or "",
        "vllm": vllm.__version__,
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
