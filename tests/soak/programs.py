"""The soak programs, the quickest first."""

from __future__ import annotations

from tests.soak import emulated, interleavings, kernels, kills, loads, proof, searches, tilings
from tests.soak.program import Program

PROGRAMS: tuple[Program, ...] = (
    loads.PROGRAM,
    interleavings.PROGRAM,
    proof.PROGRAM,
    searches.PROGRAM,
    kills.PROGRAM,
    kernels.PROGRAM,
    tilings.PROGRAM,
    emulated.PROGRAM,
)
