"""The norms around an MLP inside vLLM, by a kernel that lets the next launch begin early."""
