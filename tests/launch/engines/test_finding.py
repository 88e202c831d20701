"""Which engines there are."""

from __future__ import annotations

import pytest

from accel_nb.errors import InvalidArgument
from accel_nb.launch.engines import find_engine, find_engines
from accel_nb.launch.engines.local import LocalEngine


@pytest.mark.parametrize("backend", ["auto", "local"])
def test_without_an_engine_named_ranks_run_on_this_machine(backend: str) -> None:
    assert isinstance(find_engine(backend), LocalEngine)


def test_each_is_found_by_its_own_name() -> None:
    assert {name: engine.name for name, engine in find_engines().items()} == {name: name for name in find_engines()}


def test_an_unknown_one_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidArgument, match=r"backend='dask' is not known; allowed: 'auto', .*'local'"):
        find_engine("dask")
