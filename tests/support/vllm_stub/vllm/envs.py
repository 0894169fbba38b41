"""vLLM's environment variables, as it reads them.

Source: https://docs.vllm.ai/en/stable/configuration/env_vars/.
"""

VLLM_BATCH_INVARIANT = False
