"""Who sends a request, and whether he may."""
