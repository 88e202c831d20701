"""Which server a launch gets while a template imports what its ranks need: it is waited for, but not for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_nb.launch.servers import preload
from accel_nb.launch.servers.preload import Preload
from accel_nb.launch.servers.warm_client import ServerPool
from accel_nb.protocol import environment

IMPORT_S = 600


@pytest.fixture
def pool() -> Iterator[ServerPool]:
    pool = ServerPool()
    yield pool
    pool.stop_all()


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Of a kernel whose servers find a module that is never imported to its end, and one that is imported at once."""
    (tmp_path / "endless_module.py").write_text(f"import time; time.sleep({IMPORT_S})")
    (tmp_path / "quick_module.py").write_text("")
    return environment.current() | {"PYTHONPATH": str(tmp_path)}


def test_a_template_that_does_not_come_up_is_not_waited_for_twice(
    pool: ServerPool, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preload, "LONGEST_WAIT_S", 2.0)
    taught = Preload(pool)
    taught.learn("train", ["endless_module"], variables, num_ranks=2)

    began = time.monotonic()
    first = taught.server_for("train", variables)
    waited_s = time.monotonic() - began
    second = taught.server_for("train", variables)

    assert 2.0 <= waited_s < IMPORT_S / 10
    assert time.monotonic() - began - waited_s < 2.0, "the second launch has waited"
    assert first is second
    assert first.key.preload == ()
    assert first.poll_ready(60.0) is not None


def test_a_function_that_needs_nothing_of_the_template_does_not_wait(
    pool: ServerPool, variables: dict[str, str]
) -> None:
    taught = Preload(pool)
    taught.learn("train", ["endless_module"], variables, num_ranks=2)

    began = time.monotonic()
    server = taught.server_for("evaluate", variables)

    assert time.monotonic() - began < preload.LONGEST_WAIT_S / 2
    assert server.key.preload == ()


def test_a_wait_for_a_template_can_be_cancelled(pool: ServerPool, variables: dict[str, str]) -> None:
    taught = Preload(pool)
    taught.learn("train", ["endless_module"], variables, num_ranks=2)
    began = time.monotonic()

    server = taught.server_for("train", variables, lambda: time.monotonic() > began + 0.5)

    assert time.monotonic() - began < 10
    assert server.key.preload == ()


def test_a_template_that_comes_up_is_used(pool: ServerPool, variables: dict[str, str]) -> None:
    taught = Preload(pool)
    taught.learn("train", ["quick_module"], variables, num_ranks=2)

    server = taught.server_for("train", variables)

    assert server.key.preload == ("quick_module",)
