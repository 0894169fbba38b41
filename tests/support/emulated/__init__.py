"""Generated sources on the CPU: every thread is a fiber, every wrapper of an instruction is C++."""
