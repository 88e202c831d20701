"""Other environment variables for a while."""

from __future__ import annotations

import os

import pytest

from accel_nb.training.compat.patching import (
    clear_environment,
    convert_dict_to_env_variables,
    patch_environment,
    purge_accelerate_environment,
)


def test_variables_are_there_within_the_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BB", "kept")

    def fail() -> None:
        raise RuntimeError(os.environ["AA"] + os.environ["BB"])

    with pytest.raises(RuntimeError, match="102"), patch_environment(aa=1, bb="2"), patch_environment(Aa=10):
        fail()

    assert "AA" not in os.environ
    assert os.environ["BB"] == "kept"


def test_an_empty_environment_is_filled_again() -> None:
    before = dict(os.environ)

    with clear_environment():
        assert not os.environ
        os.environ["NEW"] = "1"

    assert dict(os.environ) == before


def leaves_variables_behind() -> None:
    os.environ["ACCELERATE_A"] = "new"
    os.environ["ACCELERATE_B"] = "changed"
    os.environ["OTHER"] = "new"


def test_only_upstreams_variables_are_put_back_after_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_B", "old")
    monkeypatch.setenv("OTHER", "old")

    purge_accelerate_environment(leaves_variables_behind)()

    assert (os.environ.get("ACCELERATE_A"), os.environ["ACCELERATE_B"]) == (None, "old")
    assert os.environ["OTHER"] == "new"


def test_the_tests_of_a_class_and_of_those_derived_are_purged() -> None:
    @purge_accelerate_environment
    class Base:
        def test_one(self) -> None:
            os.environ["ACCELERATE_A"] = "1"

        def other(self) -> None:
            os.environ["ACCELERATE_C"] = "1"

    class Derived(Base):
        def test_two(self) -> None:
            os.environ["ACCELERATE_B"] = "1"

    Derived().test_one()
    Derived().test_two()
    assert "ACCELERATE_A" not in os.environ
    assert "ACCELERATE_B" not in os.environ

    Derived().other()
    assert os.environ.pop("ACCELERATE_C") == "1"


def test_variables_that_a_shell_would_misread_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    lines = convert_dict_to_env_variables({"GOOD": "1", "BAD": "<a", "EMPTY": ""})

    assert lines == ["GOOD=1\n"]
    assert [record.getMessage().split(" is left out")[0] for record in caplog.records] == [
        "the variable 'BAD' with the value '<a'",
        "the variable 'EMPTY' with the value ''",
    ]
