"""A folder per kind of op; nothing outside a kind's folder names it. `tuner.core.problem.op_kinds` finds them."""
