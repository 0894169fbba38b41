"""Chains of a decoder layer between two attentions, compared with the library."""
