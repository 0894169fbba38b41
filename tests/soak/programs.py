"""The soak programs, the quickest first."""

from __future__ import annotations

from tests.soak import (
    answers,
    cluster,
    convs,
    crowds,
    emulated,
    finals,
    inputs,
    interleavings,
    kernels,
    kills,
    liars,
    loads,
    packs,
    proof,
    proxies,
    searches,
    storage,
    tilings,
)
from tests.soak.program import Program

PROGRAMS: tuple[Program, ...] = (
    loads.PROGRAM,
    packs.PROGRAM,
    crowds.PROGRAM,
    answers.PROGRAM,
    liars.PROGRAM,
    proxies.PROGRAM,
    inputs.PROGRAM,
    interleavings.PROGRAM,
    proof.PROGRAM,
    convs.PROGRAM,
    searches.PROGRAM,
    kills.PROGRAM,
    storage.PROGRAM,
    finals.PROGRAM,
    cluster.PROGRAM,
    kernels.PROGRAM,
    tilings.PROGRAM,
    emulated.PROGRAM,
)
