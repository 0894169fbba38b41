"""One arm of a comparison inside vLLM on a CPU: prints the tokens of a tiny model as JSON.

python tests/vllm/arm.py FAMILY LOAD_FORMAT [--eager] [--norms] [--layers] [--runs] [--reload] [--settings JSON]
    [--config JSON] [--last-row ROWS]

--norms also replaces the norms around MLPs, which then round less than vLLM's; --layers whole layers by PyTorch, and
--runs their runs between two all-reduces; --reload loads the weights again at the end. --settings are those of
vllm.LLM, --config those of the model. --last-row compiles as on a GPU, for a pack whose last kernel has so many rows.

Each arm is a separate process, since vLLM keeps one model per process; all arms share one compile cache. Importing vLLM
takes 15 s of CPU time, an eager arm 2 s. So `arm.py --serve` imports it once, and forks a process for each arm that it
reads from its input: JSON lines with `arguments`, `folder`, `output`, `pack` and `cpu_s`. It answers each with the
process's exit status.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: One thread, since the models are tiny, and threads that wait for each other actively take long on a busy machine.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
}
#: Passes that look for operators which the CPU build lacks.
NO_FUSION = {"fuse_norm_quant": False, "fuse_act_quant": False}
#: What all families have.
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
#: For each family, the fields of its config besides the sizes.
FAMILIES = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"},
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_act": "silu",
        "sliding_window": None,
    },
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu"},
    "phi3": {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_act": "silu", "pad_token_id": 0},
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 32,
        "sliding_window": 128,
        "attn_logit_softcapping": None,
        "tie_word_embeddings": True,
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": [
            "sliding_attention",
            "full_attention",
        ],  # vLLM's CPU backend does not run models with only windowed layers
        "query_pre_attn_scalar": 32,
        "sliding_window": 128,
        "tie_word_embeddings": True,
    },
    # Not among the plugin's families.
    "granite": {"architectures": ["GraniteForCausalLM"], "model_type": "granite", "hidden_act": "silu"},
}


def main(arguments: Sequence[str]) -> None:
    """Runs an arm."""
    parser = argparse.ArgumentParser()
    parser.add_argument("family", choices=list(FAMILIES))
    parser.add_argument("load_format")
    for flag in ("--eager", "--norms", "--layers", "--runs", "--reload"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--settings", type=json.loads, default={})
    parser.add_argument("--config", type=json.loads, default={})
    parser.add_argument("--last-row", type=int)
    asked = parser.parse_args(arguments)
    if asked.last_row is not None:
        os.environ["LAST_ROW"] = str(asked.last_row)
    if asked.layers or asked.runs:
        os.environ["PROGRAMS_OF_A_LAYER"] = "2" if asked.runs else "1"
    import torch
    from vllm import LLM, SamplingParams

    if asked.eager:
        # vLLM compiles its sampler even then, which takes longer than everything else here.
        torch.compiler.set_stance("force_eager")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SIZES | FAMILIES[asked.family] | asked.config))
        extra = {"load_format": "dummy", "norms": asked.norms}
        inner = {"model_loader_extra_config": extra} if asked.load_format == "tuner" else {}
        llm = LLM(
            model=folder,
            skip_tokenizer_init=True,
            load_format=asked.load_format,
            dtype="bfloat16",
            enforce_eager=asked.eager,
            max_model_len=64,
            max_num_seqs=4,
            block_size=128,
            seed=0,
            gpu_memory_utilization=0.2,  # a share of the memory of a machine that others use, too
            **inner,
            **({} if asked.last_row is None else {"compilation_config": {"pass_config": NO_FUSION}}),
            **asked.settings,
        )
        prompts = [{"prompt_token_ids": [(7 * i + 13 * j) % 500 + 5 for j in range(5 + i)]} for i in range(3)]
        how = SamplingParams(max_tokens=12, min_tokens=12, temperature=0, ignore_eos=True, detokenize=False, logprobs=6)
        answers = [out.outputs[0] for out in llm.generate(prompts, how, use_tqdm=False)]
        if asked.reload:
            try:
                llm.collective_rpc("reload_weights", kwargs={"weights_iterator": ()})
            except NotImplementedError as error:
                print(error)
    tokens = [list(one.token_ids) for one in answers]
    logprobs = [one.cumulative_logprob for one in answers]
    margins = [[_margin(step) for step in one.logprobs] for one in answers]
    from tuner.vllm.operator import calls

    print("ARM", json.dumps({"tokens": tokens, "logprobs": logprobs, "margins": margins, "calls": dict(calls)}))


def _margin(step: dict[int, Any]) -> float:
    """By how much the most likely token of a step leads the next one. Ranks draw the same weights, so tokens of all
    ranks' shares of the vocabulary are equally likely, and count as one."""
    first, *others = sorted({one.logprob for one in step.values()}, reverse=True)
    return round(first - others[0], 6) if others else 0.0


#: What all arms import. None of it may start threads that hold locks, or use OpenMP: children would hang.
IMPORTED = (
    "vllm.entrypoints.llm",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
)


def serve() -> None:
    """Runs the arms that it reads, in one process each."""
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run_arm(**json.loads(line))
            break
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _run_arm(*, arguments: list[str], folder: str, output: str, pack: str, cpu_s: int) -> None:
    """Runs in a child of `serve`, which ends afterwards."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    opened = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(opened, descriptor)
    os.chdir(folder)
    os.environ["TUNER_PACK"] = pack
    main(arguments)


if __name__ == "__main__":
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    serve() if sys.argv[1:] == ["--serve"] else main(sys.argv[1:])
