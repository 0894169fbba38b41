"""Requests from clients."""

from tuner.core.problem.op_kinds import check_kinds

check_kinds()  # before the models of all kinds are created
