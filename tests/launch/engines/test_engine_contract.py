"""The contract of engines, for each of them. What several machines add to the joining of keepers is tested in
`elastic/`, and Ray, which needs a cluster, in `ray/`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_nb.errors import EngineUnavailable
from accel_nb.launch.engines import find_engines
from accel_nb.launch.engines.on_mpi.programs import find_program
from accel_nb.protocol import environment

from .contract import EngineContract
from .remote.loopback import LoopbackEngine

pytestmark = pytest.mark.engines


class TestLocal(EngineContract):
    backend = "local"


class TestJoinedKeepers(EngineContract):
    """What MPI, Ray and several machines share: an agent and a keeper for each rank."""

    backend = "loopback"

    @pytest.fixture(autouse=True)
    def _installed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(find_engines(), self.backend, LoopbackEngine(tmp_path, (0,), (1,)))


class TestMpi(EngineContract):
    backend = "mpi"

    @pytest.fixture(autouse=True)
    def _is_here(self) -> None:
        try:
            find_program(environment.current())
        except EngineUnavailable as error:
            pytest.skip(str(error))
