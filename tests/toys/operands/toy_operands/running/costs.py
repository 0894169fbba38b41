"""The costs shared by all three kinds."""

from toy_operands.common import library_us, task_us

__all__ = ["library_us", "task_us"]
