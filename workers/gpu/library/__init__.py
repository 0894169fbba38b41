"""A workload computed by the vendor libraries."""
