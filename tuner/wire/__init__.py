"""The wire format: Pydantic models of all requests and responses. Nothing else converts between JSON and domain
values.
"""
