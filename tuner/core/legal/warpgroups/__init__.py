"""What is refused of the engine `wgmma`: warps beside those that multiply, epilogues, waits."""
