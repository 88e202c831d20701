"""What each process that mpirun starts does: be the agent of its rank."""

from __future__ import annotations

import sys

from ....protocol import environment
from ....protocol.remote import Contact, Summons
from ..remote.agent import serve

_FAILED = 1


def become_agent() -> None:
    """Of the rank that mpirun gave to this process, for the run whose contact is in the environment. Never returns."""
    text = environment.take_contact()
    rank = environment.read_rank(environment.mpi_variables(environment.current()))
    if not text or rank is None:
        missing = environment.CONTACT if not text else "which rank it is"
        print(f"accel_nb: mpirun did not tell this process {missing}.", file=sys.stderr)  # noqa: T201  nobody else listens
        sys.exit(_FAILED)
    sys.exit(serve(Summons(contact=Contact.decode(text), seat=rank.rank)))
