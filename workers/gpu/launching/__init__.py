"""Launches of products: parameters, workspaces, tensor maps."""
