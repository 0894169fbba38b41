"""Chains of a decoder layer between two attentions, against the library."""
