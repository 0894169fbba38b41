"""The vendor libraries' way of a workload."""
