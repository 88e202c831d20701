"""One agent by itself: how it is started, and what is left of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_nb.launch.engines.remote.agent import start_agent
from accel_nb.protocol.commands import Surroundings
from accel_nb.protocol.remote import Contact, Summons

pytestmark = pytest.mark.engines
CONTACT = Contact(
    addresses=("127.0.0.1",), port=9, hub_key="", agent_key="", agent_secret="", run_id="r", place="", seats=((0,),)
)
ENDS_S = 60


def test_one_that_cannot_start_does_not_hold_its_kernel_up(tmp_path: Path) -> None:
    """Though nobody reads its summons, which are more than a pipe takes."""
    around = Surroundings(variables={b"BIG": b"x" * (1 << 20)}, cwd=b"/", sys_path=(), argv=(), umask=0o22, locale="C")
    with (tmp_path / "said").open("wb") as said:
        agent = start_agent(
            Summons(contact=CONTACT, seat=0, surroundings=around),
            variables={"PYTHONHOME": "/nowhere"},
            output=said.fileno(),
        )

        assert agent.wait(ENDS_S) != 0
