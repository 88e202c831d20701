"""Start the warm server before anybody needs it."""

from __future__ import annotations

from ...protocol import environment
from .preload import PRELOAD


def warm_up() -> None:
    """Have a server import torch in the background. Returns at once. Raises ServerFailed when it cannot be started."""
    variables = environment.current()
    clean = {name: value for name, value in variables.items() if not environment.is_foreign_launcher_variable(name)}
    PRELOAD.server_for("", clean)
