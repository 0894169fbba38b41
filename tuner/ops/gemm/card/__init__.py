"""The vendor's library of products on a card."""
