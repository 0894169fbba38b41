"""One arm of a comparison inside vLLM on a CPU: prints the tokens of a tiny model as JSON.

python tests/vllm/arm.py FAMILY LOAD_FORMAT [--eager] [--layers] [--runs] [--reload] [--settings JSON] [--config JSON]

--layers also replaces whole layers by PyTorch, and --runs their runs between two all-reduces; --reload loads the
weights again at the end. --settings are those of vllm.LLM, --config those of the model.

Each arm is a separate process, since vLLM keeps one model per process; all arms share one compile cache.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("family", choices=list(FAMILIES))
    parser.add_argument("load_format")
    for flag in ("--eager", "--layers", "--runs", "--reload"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--settings", type=json.loads, default={})
    parser.add_argument("--config", type=json.loads, default={})
    asked = parser.parse_args()
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    if asked.layers or asked.runs:
        os.environ["PROGRAMS_OF_A_LAYER"] = "2" if asked.runs else "1"
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SIZES | FAMILIES[asked.family] | asked.config))
        inner = {"model_loader_extra_config": {"load_format": "dummy"}} if asked.load_format == "tuner" else {}
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
            **asked.settings,
        )
        prompts = [{"prompt_token_ids": [(7 * i + 13 * j) % 500 + 5 for j in range(5 + i)]} for i in range(3)]
        how = SamplingParams(max_tokens=12, min_tokens=12, temperature=0, ignore_eos=True, detokenize=False, logprobs=1)
        answers = [out.outputs[0] for out in llm.generate(prompts, how, use_tqdm=False)]
        if asked.reload:
            try:
                llm.collective_rpc("reload_weights", kwargs={"weights_iterator": ()})
            except NotImplementedError as error:
                print(error)
    tokens = [list(one.token_ids) for one in answers]
    logprobs = [one.cumulative_logprob for one in answers]
    from tuner.vllm.operator import calls

    print("ARM", json.dumps({"tokens": tokens, "logprobs": logprobs, "calls": dict(calls)}))


if __name__ == "__main__":
    main()
