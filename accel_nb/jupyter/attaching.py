"""``accel_nb.attach()``: show a run again, one that goes on or one that is over."""

from __future__ import annotations

from ..errors import InvalidArgument
from ..launch.recording import recorded_events
from ..launch.run import draw_in_background
from ..protocol.run_state import RunState, advance_all
from .display import choose_view
from .known_runs import KNOWN, KnownRun


def attach(run: str | None = None, *, wait: bool = False) -> None:
    """Show a run of this kernel in the cell that runs now, from the run's beginning.

    Args:
        run: its id, the beginning or the end of that, or its function's name; None: the newest, one that goes on before
            one that is over.
        wait: the cell goes on until the run is over; an interrupt ends the showing, not the run. Otherwise what the run
            writes from now on is shown in this cell, whatever cells run meanwhile.

    Raises InvalidArgument when there is no such run.
    """
    known = _newest() if run is None else KNOWN.find(run)
    handle = KNOWN.handle(known)
    view = choose_view()
    if handle is not None:
        view.serve(handle, raises=False)
    if handle is None or handle.wait(0):
        events = recorded_events(known.log_dir)
        state = advance_all(RunState(), events)
        view.update(events, state)
        view.close(state)
        how = f" after {state.duration_s:.1f} s" if state.duration_s else ""
        print(f"accel_nb: {known.function_name} ({known.run_id}): {state.status}{how}. Logs: {known.log_dir}")  # noqa: T201  the cell's output
    elif wait:
        handle.draw_again(view)
    else:
        draw_in_background(handle, lambda: handle.draw_again(view))


def _newest() -> KnownRun:
    going_on = {run.plan.run_id for run in KNOWN.running()}
    known = KNOWN.all()
    if not known:
        raise InvalidArgument("attach: this kernel has launched no run yet.")
    return max(known, key=lambda one: (one.run_id in going_on, known.index(one)))
