"""A stub of the part of vLLM's interface that `tuner.vllm` uses; written from vLLM's documentation.

Source: https://docs.vllm.ai/en/stable/design/plugin_system/: a general plugin is a function without arguments, called
in each process. `register_model_loader` names a load format. tests/vllm runs the same plugin inside vLLM itself.
"""
