"""The wire: Pydantic models of every request and answer. Nothing else turns JSON into domain values or back."""
