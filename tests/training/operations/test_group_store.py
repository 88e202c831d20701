"""Waiting for other ranks' messages in a store."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]  # public, says the documentation

from accel_nb.errors import AnotherRankFailed
from accel_nb.training.operations import abandoned
from accel_nb.training.operations.group_store import wait_for_keys


def test_a_long_wait_tells_how_long_and_torch_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """The store's own wait has torch write two lines whenever it runs out."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told: list[float] = []

    assert not wait_for_keys(store, ["never"], timeout_s=1.3, still_waiting=told.append)

    assert [round(waited_s) for waited_s in told] == [1]
    assert capfd.readouterr() == ("", "")


def test_a_wait_ends_with_the_keys_or_as_soon_as_it_is_of_no_use() -> None:
    store = HashStore()
    store.set("key", "")

    assert wait_for_keys(store, ["key"])
    assert not wait_for_keys(store, ["key", "never"], unless=lambda: True)


def test_an_abandoned_wait_ends_for_whoever_wants_it_to() -> None:
    store = HashStore()
    outer, inner = object(), object()
    abandoned.leave(outer, "the outer one")
    abandoned.leave(inner, "the inner one")
    abandoned.stay(inner)
    try:
        with pytest.raises(AnotherRankFailed, match="the outer one"):
            wait_for_keys(store, ["never"])
    finally:
        abandoned.stay(outer)
