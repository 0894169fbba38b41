"""The wire: Pydantic models of every request and response. Nothing else converts between JSON and domain values."""
