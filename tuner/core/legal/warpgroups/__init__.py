"""Rules of the engine `wgmma`: warps besides those that multiply, epilogues, waits."""
