"""Checks whether a package provides the required interface: signatures and types.

The requirements are written once, as a protocol or a typed dataclass, where they are used.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from traceback import extract_tb
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

#: Exceptions that a package may raise when it is imported.
ANY_FAULT = (Exception, SystemExit)
#: Maximum number of entries that are checked one by one.
_MOST_CHECKED = 64


def reason_of(error: BaseException, *own: str) -> str:
    """The exception, and the line that raised it, skipping lines of our `own` files."""
    lines = [one for one in extract_tb(error.__traceback__) if not one.filename.startswith(("<", __file__, *own))]
    where = f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""
    return f"{type(error).__name__}: {error}{where}"


def is_protocol(hint: Any) -> bool:
    """Whether a type is a protocol."""
    return bool(getattr(hint, "_is_protocol", False))


def hooks_of(protocol: type) -> dict[str, Callable[..., Any]]:
    """The methods of a protocol, by name."""
    return {
        name: one
        for cls in reversed(protocol.__mro__)
        if is_protocol(cls)
        for name, one in vars(cls).items()
        if inspect.isfunction(one) and not name.startswith("_")
    }


def returned_by(hook: Callable[..., Any]) -> Any:
    """The return type of a protocol's method."""
    return get_type_hints(hook).get("return", Any)


def attributes_of(protocol: type) -> dict[str, Any]:
    """The types of a protocol's attributes and properties, by name."""
    found = get_type_hints(protocol)
    for cls in protocol.__mro__:
        for name, one in vars(cls).items():
            if isinstance(one, property) and one.fget and is_protocol(cls):
                found.setdefault(name, returned_by(one.fget))
    return found


def module_problem(module: Any, protocol: type, optional: Iterable[str] = ()) -> str:
    """Why a module, or another object, does not satisfy the protocol; empty if it does. Members in `optional` may be
    missing.
    """
    lacking = set(optional)
    for name, hint in attributes_of(protocol).items():
        if not hasattr(module, name):
            if name not in lacking:
                return f"lacks {name}: add {type_name(hint)}"
        elif problem := value_problem(getattr(module, name), hint):
            return f"has {name}, which {problem}"
    for name, hook in hooks_of(protocol).items():
        if not hasattr(module, name):
            if name not in lacking:
                return f"lacks {name}: add a function of {_arguments(_of_method(hook))}"
        elif problem := call_problem(getattr(module, name), _of_method(hook), returned_by(hook)):
            return f"has {name}, which {problem}"
    return ""


def call_problem(what: Any, asked: inspect.Signature, returned: Any = Any) -> str:
    """Why something cannot be called as required; empty if it can."""
    remedy = f"pass a function of {_arguments(asked)}"
    if inspect.isclass(what) and not _makes(what, returned):
        return f"is the class {what.__name__}: {remedy}"
    if not callable(what):
        return f"is {what!r}: {remedy}"
    if inspect.iscoroutinefunction(what):
        return f"is a coroutine, which nothing awaits: {remedy}"
    try:
        own = inspect.signature(what)
    except (TypeError, ValueError):  # a C function, which has no signature
        return ""
    return "" if _can_be_called(own, asked) else f"takes {_arguments(own)}: {remedy}"


def value_problem(value: Any, hint: Any) -> str:
    """Why a value does not have a type, as far as can be checked without consuming it; empty if it does."""
    if _is_of(value, hint):
        return fields_problem(value) if is_dataclass(value) and not isinstance(value, type) else ""
    return f"is {_short(value)}: use {type_name(hint)}"


def fields_problem(one: Any) -> str:
    """Why a field of a dataclass instance does not have its type, or cannot be called as its type requires; empty if
    all are fine."""
    for name, hint in _types_of(one.__class__):
        value, arguments = getattr(one, name), get_args(hint)
        if get_origin(hint) is Callable and isinstance(arguments[0], list):
            problem = call_problem(value, positional(len(arguments[0])), arguments[1])
        else:
            problem = "" if _is_of(value, hint) else f"is {_short(value)}: use {type_name(hint)}"
        if problem:
            return f"has {name}, which {problem}"
    return ""


@cache
def _types_of(cls: Any) -> tuple[tuple[str, Any], ...]:
    """The name and the type of each field of a dataclass. Cached, since a search checks thousands of instances."""
    hints = get_type_hints(cls)
    return tuple((field.name, hints[field.name]) for field in fields(cls))


def overrides_problem(cls: type, base: type) -> str:
    """Why members of a class are incompatible with those of its base; empty if all are compatible. A property must stay
    a property, and a method must accept the arguments that callers pass."""
    for name in dir(base):
        asked, own = inspect.getattr_static(base, name), inspect.getattr_static(cls, name, None)
        if name.startswith("_") or own is asked or own is None:
            continue
        if isinstance(asked, property):
            if inspect.isfunction(own) or isinstance(own, classmethod | staticmethod):
                return f"{name} as a method: make it a property"
        elif isinstance(asked, classmethod | staticmethod) or inspect.isfunction(asked):
            if isinstance(own, property | cached_property):
                return f"{name} as a property: make it a method"
            signature = inspect.signature(getattr(base, name))
            if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in signature.parameters.values()):
                continue  # a *args hook: its argument count is checked at the call site
            if problem := call_problem(getattr(cls, name), signature):
                return f"{name}, which {problem}"
    return _hidden_problem(cls, base)


def _hidden_problem(cls: type, base: type) -> str:
    """Which field of a dataclass hides a property of its base with a different type; empty if none does."""
    for one in fields(cls) if is_dataclass(cls) else ():
        asked = inspect.getattr_static(base, one.name, None)
        if not isinstance(asked, property) or asked.fget is None:
            continue
        try:
            is_same = get_type_hints(cls)[one.name] == returned_by(asked.fget)
        except NameError:  # a type that is only imported for checks
            is_same = False
        if not is_same:
            return f"the field {one.name}, but all ops have something else by that name: use another name"
    return ""


def type_name(hint: Any) -> str:
    """A type in words."""
    if hint in (None, NoneType):
        return "None"
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(type_name, get_args(hint)))
    if get_origin(hint) in (Sequence, list, tuple) and (arguments := get_args(hint)):
        return f"a list of {type_name(arguments[0])}" if arguments[0] is not Any else "a list"
    named = {float: "a number", int: "a whole number", str: "a string", bool: "True or False", Any: "anything"}
    return str(named.get(hint) or getattr(hint, "__name__", hint))


def _of_method(hook: Callable[..., Any]) -> inspect.Signature:
    """The signature without self."""
    signature = inspect.signature(hook)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def positional(count: int) -> inspect.Signature:
    """Signature of a call with `count` positional arguments."""
    kind = inspect.Parameter.POSITIONAL_ONLY
    return inspect.Signature([inspect.Parameter(f"argument{i}", kind) for i in range(count)])


def _arguments(signature: inspect.Signature) -> str:
    """``(op, tile, *, in_band)``."""
    bare = [
        one.replace(annotation=inspect.Parameter.empty, default=inspect.Parameter.empty)
        for one in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return text.replace(", /)", ")")


def _can_be_called(own: inspect.Signature, asked: inspect.Signature) -> bool:
    """Whether `own` can be called with all arguments that `asked` has, and with only the mandatory ones."""
    for every in (True, False):
        given = [one for one in asked.parameters.values() if every or one.default is inspect.Parameter.empty]
        named = {one.name: None for one in given if one.kind is inspect.Parameter.KEYWORD_ONLY}
        try:
            own.bind(*(None for one in given if one.kind in _BY_PLACE), **named)
        except TypeError:
            return False
    return True


_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _makes(cls: type, hint: Any) -> bool:
    """Whether instances of a class have the required return type."""
    if is_protocol(hint):
        return all(hasattr(cls, name) or _is_field(cls, name) for name in (*hooks_of(hint), *attributes_of(hint)))
    of = get_origin(hint) or hint
    return inspect.isclass(of) and issubclass(cls, of)


def _is_field(cls: type, name: str) -> bool:
    return is_dataclass(cls) and name in {one.name for one in fields(cls)}


def _is_of(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or isinstance(hint, str | TypeVar):
        return True
    if origin in (Union, UnionType):
        return any(_is_of(value, one) for one in arguments)
    if hint in (float, int):
        kind: Any = numbers.Real if hint is float else numbers.Integral
        return isinstance(value, kind) and not isinstance(value, bool) and value == value
    if origin is type:
        return isinstance(value, type) and (not inspect.isclass(arguments[0]) or _makes(value, arguments[0]))
    if origin is Callable or hint is Callable:
        return callable(value)
    if origin is None:
        if is_protocol(hint):
            return all(hasattr(value, name) for name in (*hooks_of(hint), *attributes_of(hint)))
        return value is None if hint in (None, NoneType) else not inspect.isclass(hint) or isinstance(value, hint)
    return _are_of(value, origin, arguments)


def _are_of(value: Any, origin: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether the members of a container have their types; a list is accepted as a tuple or any sequence."""
    if origin in (Sequence, list, tuple):
        if not isinstance(value, list | tuple):
            return False
        if origin is tuple and arguments[1:] != (...,):
            return len(value) == len(arguments) and all(map(_is_of, value, arguments))
        return all(_is_of(one, arguments[0]) for one in value[:_MOST_CHECKED])
    if issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _is_of(key, arguments[0]) and _is_of(one, arguments[1]) for key, one in value.items()
        )
    if issubclass(origin, Iterator | Iterable):
        return isinstance(value, Iterable) and not isinstance(value, str)
    return isinstance(value, origin)


def _short(value: Any) -> str:
    """The value with its type, unless that is obvious."""
    text = repr(value)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return shown if isinstance(value, str | int | float | NoneType) else f"{shown}, of {type(value).__name__}"
