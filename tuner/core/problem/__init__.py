"""The problem: workload, GPU, objective, and the resources of a CTA."""
