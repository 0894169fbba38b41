"""What is asked, on what: workload, GPU, objective, and what a CTA takes."""
