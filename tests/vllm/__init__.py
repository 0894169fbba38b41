"""Tests in vLLM itself, on a CPU; run separately (`make test-vllm`)."""
