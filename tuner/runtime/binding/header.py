"""The declarations of `tuner.h` for ctypes: constants, structs and functions are read from the header itself."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any, TypeVar

_NUMBERS = {"int": "int", "int32_t": "int32", "uint32_t": "uint32", "int64_t": "int64", "uint64_t": "uint64"}
_NUMBERS |= {"uint8_t": "uint8", "size_t": "size_t", "float": "float", "double": "double", "tuner_status": "int"}
_DECLARATOR = re.compile(r"(?P<stars>[*\s]*)(?P<name>\w+)(?:\[(?P<count>\d+)\])?")

Struct = TypeVar("Struct", bound=ctypes.Structure)


class Header:
    """A C header with the features that `tuner.h` uses: no macros with values, no unions, no callbacks."""

    def __init__(self, path: Path) -> None:
        text = re.sub(r"/\*.*?\*/|^\s*#.*?$", " ", path.read_text(), flags=re.S | re.M)
        #: The constants of all enums, by name.
        self.constants = {name: int(value) for name, value in re.findall(r"\b(TUNER_\w+)\s*=\s*(-?\d+)", text)}
        self._fields = dict(re.findall(r"typedef struct \w+\s*\{([^}]*)\}\s*(\w+);", text))
        self._fields = {name: body for body, name in self._fields.items()}
        self._functions = re.findall(r"^(tuner_status|void|const char \*)\s*(\w+)\(([^)]*)\);", text, flags=re.M)
        self._structs: dict[str, Any] = {}

    def struct(self, made: type[Struct]) -> type[Struct]:
        """A class decorator: gives `AttentionShape` the fields of `tuner_attention_shape`."""
        name = "tuner_" + re.sub(r"(?<!^)([A-Z])", r"_\1", made.__name__).lower()
        made._fields_ = [field for line in self._fields[name].split(";") for field in self._declared(line)]
        self._structs[name] = made
        return made

    def bind(self, library: ctypes.CDLL) -> None:
        """Gives a library's functions their types."""
        for answer, name, parameters in self._functions:
            function = getattr(library, name)
            function.restype = {"tuner_status": ctypes.c_int, "void": None}.get(answer, ctypes.c_char_p)
            listed = [] if parameters.strip() == "void" else parameters.split(",")
            function.argtypes = [kind for one in listed for _, kind in self._declared(one, is_argument=True)]

    def _declared(self, text: str, *, is_argument: bool = False) -> list[tuple[str, Any]]:
        """Names and types of one declaration, e.g. ``const void *keys, *values``."""
        words = re.match(r"\s*((?:const )?\w+)(?: const)?(.*)", text.replace("\n", " "), flags=re.S)
        if words is None:
            return []
        base, found = words[1], []
        for part in words[2].split(","):
            one = _DECLARATOR.fullmatch(part.replace("const", "").strip())
            assert one is not None, text
            kind = self._type(base, one["stars"].count("*"), is_argument=is_argument)
            found.append((one["name"], kind * int(one["count"]) if one["count"] else kind))
        return found

    def _type(self, base: str, depth: int, *, is_argument: bool) -> Any:
        name = base.removeprefix("const ")
        if depth == 1 and name == "char":
            return ctypes.c_char_p
        value = self._structs.get(name) or getattr(ctypes, f"c_{_NUMBERS.get(name, 'void_p')}")
        if depth == 0:
            return value
        if depth == 2:
            return ctypes.POINTER(ctypes.c_void_p)
        return ctypes.c_void_p if not is_argument or value is ctypes.c_void_p else ctypes.POINTER(value)
