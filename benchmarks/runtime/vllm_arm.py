"""One arm of a comparison inside vLLM, in a process and a compile cache of its own: prints a line of JSON.

python -P benchmarks/runtime/vllm_arm.py ARM --model DIR [--batches 1,8,32] [--settings JSON]

ARM is `stock`, or with TUNER_PACK set and the wheel installed `mlps`, or `layers`, which has MLPs as well. It runs with
the Python that has vLLM, and imports nothing of this repository. A step's time is the difference of two runs that
differ in their tokens alone, so prefill and start-up cancel. `gpu_ms` is what kernels took of it, by PyTorch's profiler
in runs of their own. `first_token_ms` is that of one sequence alone, whose prompt no run before it had."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

#: New tokens of the two runs, and of the sequences whose tokens are compared.
SHORT, LONG, COMPARED = 16, 144, 64
#: Runs until the first token.
FIRSTS = 5


def started(arm: str, model: str, batches: list[int], settings: dict[str, Any]) -> Any:
    """vLLM with this model."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from vllm import LLM

    _draw_weights_of_a_models_size()
    extra = {"load_format": "dummy", "layers": arm == "layers"}
    inner = {"model_loader_extra_config": extra} if arm != "stock" else {}
    common = {"skip_tokenizer_init": True, "seed": 0, "max_num_seqs": max(batches), **inner, **settings}
    return LLM(model=model, load_format="dummy" if arm == "stock" else "tuner", **common)


def _draw_weights_of_a_models_size() -> None:
    """vLLM draws weights of 0.001, norms among them: then all logits are alike. These keep a stream's size, and norms
    are near 1."""
    import torch
    from vllm.model_executor.model_loader import dummy_loader

    plain = dummy_loader.initialize_dummy_weights

    def drawn(model: Any, *others: Any, **how: Any) -> None:
        plain(model, *others, **{**how, "low": -0.03, "high": 0.03})
        for name, weight in model.named_parameters():
            if "norm" in name:
                generator = torch.Generator(device=weight.device).manual_seed(len(name))
                weight.data.uniform_(0.8, 1.2, generator=generator)

    dummy_loader.initialize_dummy_weights = drawn


class Runs:
    """Runs of one arm, whose prompts are those of the other arm's."""

    def __init__(self, llm: Any, prompt: int) -> None:
        self._llm, self._prompt = llm, prompt

    def run(self, batch: int, tokens: int, first: int = 0, **how: Any) -> tuple[float, list[Any]]:
        """Seconds, and what came out of prompts that follow from these numbers."""
        from vllm import SamplingParams

        prompts = [
            {"prompt_token_ids": [(7 * i + 13 * j + tokens + first) % 400 + 5 for j in range(self._prompt)]}
            for i in range(batch)
        ]
        asked = SamplingParams(
            max_tokens=tokens, min_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False, **how
        )
        begin = time.perf_counter()
        found = self._llm.generate(prompts, asked, use_tqdm=False)
        return time.perf_counter() - begin, [one.outputs[0] for one in found]

    def step_ms(self, batch: int) -> float:
        """Of a decode step."""
        short, long = (self.run(batch, tokens)[0] for tokens in (SHORT, LONG))
        return 1e3 * (long - short) / (LONG - SHORT)

    def gpu_ms(self, batch: int) -> float | None:
        """What kernels take of a step; None without a card."""
        import torch

        if not torch.cuda.is_available():
            return None
        busy = []
        for tokens in (SHORT, 2 * SHORT):
            self.run(batch, tokens)  # from then on the prefix cache has the prompts, and both runs the same prefill
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                self.run(batch, tokens)
            busy.append(sum(event.self_device_time_total for event in profile.key_averages()))
        return float(busy[1] - busy[0]) / 1e3 / SHORT

    def compared(self, batch: int) -> list[dict[str, Any]]:
        """Tokens, with the log-probabilities of the two most likely ones at each."""
        _, outputs = self.run(batch, COMPARED, logprobs=2)
        return [
            {
                "tokens": list(one.token_ids),
                "logprobs": [sorted((p.logprob for p in at.values()), reverse=True)[:2] for at in one.logprobs],
            }
            for one in outputs
        ]


def main() -> None:
    """Runs the arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arm", choices=("stock", "mlps", "layers"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--batches", default="1,8,32", help="with commas")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--settings", type=json.loads, default={}, help="of vllm.LLM, as JSON")
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batches.split(",")]
    if options.arm == "stock":
        os.environ.pop("TUNER_PACK", None)
    begin = time.perf_counter()
    llm = started(options.arm, options.model, batches, options.settings)
    found: dict[str, Any] = {"arm": options.arm, "start_s": round(time.perf_counter() - begin, 1), "batches": {}}
    if options.arm == "layers" and not _layers():
        raise SystemExit("no decode step runs the pack's layers: vLLM's log has the reasons")
    runs = Runs(llm, options.prompt)
    runs.run(1, 1)
    # The prefix cache has no prompt that differs in its first token.
    found["first_token_ms"] = round(1e3 * median(runs.run(1, 1, 1 + i)[0] for i in range(FIRSTS)), 3)
    for batch in batches:
        runs.step_ms(batch)
        found["batches"][batch] = {
            "ms_step": round(runs.step_ms(batch), 4),
            "gpu_ms": runs.gpu_ms(batch),
            "outputs": runs.compared(batch),
        }
    if options.arm != "stock":
        from tuner.vllm.operator import calls

        found["calls"] = dict(calls)
    found["machine"] = machine()
    print("ARM", json.dumps(found))


def _layers() -> int:
    """How many layers of steps ran or were captured by a pack's programs."""
    from tuner.vllm.operator import calls

    return int(calls["layers"])


def machine() -> dict[str, Any]:
    """What a report tells of it."""
    import torch
    import vllm

    driver = Path("/proc/driver/nvidia/version")
    words = driver.read_text().split("  ") if driver.exists() else []
    has_card = torch.cuda.is_available()
    return {
        "gpu": torch.cuda.get_device_name() if has_card else "none",
        "driver": words[1].split()[0] if len(words) > 1 else "",
        "cuda": torch.version.cuda or "",
        "vllm": vllm.__version__,
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
