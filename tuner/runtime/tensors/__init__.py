"""Arrays of any library, and what is checked of them."""
