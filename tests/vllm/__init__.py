"""vLLM itself, on a CPU; a lane of its own (`make test-vllm`)."""
