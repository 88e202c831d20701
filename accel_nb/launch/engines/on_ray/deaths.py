"""What Ray knows about an actor that does not answer any more, as a sentence that names node and cause."""

from __future__ import annotations

import re
import socket

from .room import RayNode

_REACH_S = 1.0
_DETAIL = re.compile(r"Worker exit detail: (.*?)(?:\. Some common causes|\.? For more information|$)")
_CAUSE = re.compile(r"(The actor (?:died|is dead|is temporarily) .*|the actor's node was .*)")
_MOST_CHARACTERS = 300


def death_text(error: Exception, node: RayNode, pid: int, *, node_answers: bool) -> str:
    """`error`: what Ray raised for a call of the actor, which was process `pid` on `node`. `node_answers`: whether
    Ray's own process there, the raylet, still takes connections.
    """
    cause = getattr(error, "cause", None)
    if cause is not None:
        # What our own code there has raised (`ray.exceptions.RayTaskError`).
        return f"It has failed: {cause}"
    said = f"Ray says: {rays_words(error)}"
    if not node_answers:
        return f"Its node, {node.label} at {node.address}, has died, was stopped, or cannot be reached any more. {said}"
    return f"The Ray actor beside it (pid {pid} at {node.address}) has died. {said}"


def rays_words(error: Exception) -> str:
    """Of Ray's long message, what says why; on one line."""
    text = " ".join(str(error).split())
    found = _DETAIL.search(text) or _CAUSE.search(text)
    words = (found[1] if found is not None else text)[:_MOST_CHARACTERS].strip()
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def answers(node: RayNode) -> bool:
    """Whether the raylet of `node` takes connections; within a second."""
    try:
        socket.create_connection((node.address, node.manager_port), _REACH_S).close()
    except OSError:
        return False
    return True
