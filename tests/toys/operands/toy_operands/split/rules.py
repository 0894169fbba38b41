"""The engines shared by all three kinds."""

from toy_operands.common import ENGINES, refuse, resources_of

__all__ = ["ENGINES", "refuse", "resources_of"]
