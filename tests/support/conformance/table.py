"""The whole table: the cases of every engine and every feature."""

from __future__ import annotations

from tests.support.conformance import (
    attention,
    between,
    chains,
    cluster,
    cluster_k,
    first_wave,
    hints,
    in_band,
    mma,
    neighbours,
    options,
    ping_pong,
    scattered,
    simt,
    split,
    startup_prefetch,
    swap_ab,
    tma_epilogue,
    turned,
    wgmma,
)
from tests.support.conformance.case import Case

TABLES = (
    mma,
    simt,
    wgmma,
    ping_pong,
    swap_ab,
    tma_epilogue,
    cluster,
    cluster_k,
    first_wave,
    startup_prefetch,
    split,
    options,
    scattered,
    hints,
    neighbours,
    chains,
    turned,
    in_band,
    attention,
    between,
)
CASES: tuple[Case, ...] = tuple(case for table in TABLES for case in table.CASES)
