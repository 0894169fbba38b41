"""What tests share: cases, mutants, an oracle, an interpreter of plans, servers."""
