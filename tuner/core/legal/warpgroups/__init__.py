"""Rules of the engine `wgmma`: additional warps, epilogues, waits."""
