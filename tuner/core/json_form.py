"""How a domain type appears in a message: in its own JSON form, whatever reads and writes the message."""

from __future__ import annotations

from typing import Any, Self


class JsonForm:
    """A type whose `to_json` and `from_json` are all that a message needs; the types of its fields may be open."""

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Inverse of `to_json`."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> dict[str, Any]:
        """For code that builds messages with Pydantic, whose schemas are plain dicts."""
        return {
            "type": "function-plain",
            "function": {"type": "no-info", "function": cls._from_message},
            "serialization": {"type": "function-plain", "function": cls.to_json},
        }

    @classmethod
    def _from_message(cls, value: Any) -> Self:
        """Raises:
        ValueError: it is not a JSON form of the type."""
        if isinstance(value, cls):
            return value
        try:
            return cls.from_json(value)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is not a {cls.__name__}: {type(error).__name__}: {error}") from error
