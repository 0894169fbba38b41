"""Runs generated sources on the CPU: every thread is a fiber, and every instruction wrapper is C++."""
