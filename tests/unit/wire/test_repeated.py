"""A name that an object has twice is found by its path, and bodies without one are left to whoever parses them."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.wire.requests.repeated import repeated_field


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"pair": 1, "seed": 2, "pair": 1}', "pair"),
        (b'{"pair": {"m": 16, "m": 1}, "seed": 1}', "pair.m"),
        (b'{"pairs": [{"m": 1}, {"m": 1, "k": 2, "m": 2}]}', "pairs.1.m"),
        (b'[[{"a": 1, "a": 1}]]', "0.0.a"),
        (b'{"a": {"b": 1, "b": 1}, "c": 1, "c": 1}', "c"),
        (b'{"a": {"b": 1, "b": 1}, "a": 1}', "a"),
        (b'{"\\u0061": 1, "a": 1}', "a"),
        (b'{"": 1, "": 1}', ""),
        ('{"\u00e4": 1, "\u00e4": 1}'.encode("utf-16"), "\u00e4"),
    ],
)
def test_the_outermost_repeated_name_is_found_by_its_path(body: bytes, field: str) -> None:
    assert repeated_field(body) == field


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"a": 1, "a": 1', b"\xff", b"[" * 100_000, b"1" * 10_000, b'{"a": 1, "A": 1, "b": {"a": 1}}']
)
def test_other_bodies_have_none(body: bytes) -> None:
    assert repeated_field(body) is None


@settings(max_examples=30)
@given(st.recursive(st.none() | st.text(max_size=2), lambda one: st.lists(one) | st.dictionaries(st.text(), one)))
def test_no_object_of_a_program_has_one(value: object) -> None:
    assert repeated_field(json.dumps(value).encode()) is None


def test_many_names_take_no_longer_than_few() -> None:
    names = ", ".join(f'"{number}": 0' for number in range(80_000))
    assert repeated_field(f'{{{names}, "79999": 1}}'.encode()) == "79999", "compared in pairs, this takes minutes"


def test_a_long_name_of_a_list_is_not_copied_for_each_element() -> None:
    name, elements = "n" * 2000, "0, " * 20_000
    body = f'{{"{name}": [{elements}{{"a": 1, "a": 2}}]}}'.encode()
    tracemalloc.start()
    try:
        assert repeated_field(body) == "..." + f"{name}.20000.a"[-200:]
        assert tracemalloc.get_traced_memory()[1] < 200 * len(body), "copied, 1 MiB would take 100 GiB"
    finally:
        tracemalloc.stop()
