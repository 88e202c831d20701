"""Small operations on plain values."""

from __future__ import annotations

import types

import pytest

from accel_nb.training.compat.plain_values import convert_bytes, get_pretty_name, merge_dicts, recursive_getattr


def test_dictionaries_are_merged_at_every_depth() -> None:
    destination = {"a": {"x": 1, "y": 2}, "b": 3}

    merged = merge_dicts({"a": {"y": 20, "z": {"w": 1}}, "c": 4}, destination)

    assert merged is destination
    assert merged == {"a": {"x": 1, "y": 20, "z": {"w": 1}}, "b": 3, "c": 4}


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KB"), (3 * 2**40, "3.0 TB"), (2**51, "2.0 PB")],
)
def test_sizes_have_the_largest_unit(size: float, text: str) -> None:
    assert convert_bytes(size) == text


def test_a_path_of_attributes_is_followed() -> None:
    thing = types.SimpleNamespace(a=types.SimpleNamespace(b=5))

    assert recursive_getattr(thing, "a.b") == 5
    with pytest.raises(AttributeError, match="has no attribute 'c'"):
        recursive_getattr(thing, "a.c.d")


def test_things_are_named_by_what_they_are() -> None:
    class Local:
        pass

    assert get_pretty_name(Local).endswith("<locals>.Local")
    assert get_pretty_name(Local()).endswith("<locals>.Local")
    assert get_pretty_name(len) == "len"
    assert get_pretty_name(5) == "int"
