"""What the engines have in common that they cannot do: ranks that are not the kernel's own."""

from __future__ import annotations

from ....errors import PlanError
from ....protocol.plan import LaunchRequest


def check_limits(request: LaunchRequest) -> None:
    """Raises PlanError, in one sentence, for what only ranks on this machine, under the kernel's own keeper, can do."""
    refused = {
        "start_method='fork'": request.start_method == "fork",
        "dry_run=True": request.dry_run,
    }
    for argument, is_asked in refused.items():
        if is_asked:
            raise PlanError(
                f"{argument} is not possible with backend={request.backend!r}: it takes the kernel's own machine. "
                "Leave one of the two out."
            )
