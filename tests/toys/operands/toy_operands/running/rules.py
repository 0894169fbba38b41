"""What all three kinds say of engines."""

from toy_operands.common import ENGINES, refuse, resources_of

__all__ = ["ENGINES", "refuse", "resources_of"]
