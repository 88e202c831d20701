"""Finding a run by what a person remembers of it."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from accel_nb.errors import InvalidArgument
from accel_nb.jupyter.attaching import attach
from accel_nb.jupyter.known_runs import KEPT_RUNS, KNOWN, KnownRuns, Outcome
from accel_nb.launch.run import Run
from accel_nb.protocol.run_state import RunState


class OneRun:
    """What is asked of a run here."""

    def __init__(self, run_id: str, function_name: str, *, over: bool = False) -> None:
        self.plan = SimpleNamespace(run_id=run_id, function_name=function_name, num_ranks=2, device_kind="cpu")
        self.log_dir = Path("/logs")
        self.over = over
        self.status = "failed" if over else "running"
        self.state = RunState(duration_s=1.5 if over else 0.0)
        self.problem = "ValueError: wrong" if over else ""
        self.acts: list[Callable[[Run], None]] = []

    def wait(self, timeout_s: float) -> bool:
        assert timeout_s == 0
        return self.over

    def when_over(self, act: Callable[[Run], None]) -> None:
        self.acts.append(act)
        if self.over:
            self.end()

    def end(self) -> None:
        for act in self.acts:
            act(cast("Run", self))


def known(*runs: OneRun) -> KnownRuns:
    found = KnownRuns()
    for run in runs:
        found.add(cast("Run", run))
    return found


def test_a_run_is_found_by_its_id_the_ends_of_that_and_its_functions_name() -> None:
    runs = [
        OneRun("20261127-1-aaaa", "train"),
        OneRun("20261127-2-bbbb", "Cell In[7]"),
        OneRun("20261128-3-cccc", "train"),
    ]
    here = known(*runs)

    found = [here.find(name).run_id for name in ("20261127-1-aaaa", "bbbb", "20261128", "Cell In[7]", "train")]

    assert found == ["20261127-1-aaaa", "20261127-2-bbbb", "20261128-3-cccc", "20261127-2-bbbb", "20261128-3-cccc"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("2026", "'2026' fits several runs; the newest are: 2026-1-aaaa (train), 2026-2-bbbb (test)."),
        ("valid", "'valid' is no run of this kernel; the newest are: 2026-1-aaaa (train), 2026-2-bbbb (test)."),
    ],
)
def test_what_fits_no_run_or_several_is_refused(name: str, message: str) -> None:
    runs = [OneRun("2026-1-aaaa", "train"), OneRun("2026-2-bbbb", "test")]

    with pytest.raises(InvalidArgument, match=re.escape(message)):
        known(*runs).find(name)


def test_those_that_go_on_are_told_from_those_that_are_over() -> None:
    runs = [OneRun("1", "a"), OneRun("2", "b", over=True), OneRun("3", "c")]

    assert [run.plan.run_id for run in known(*runs).running()] == ["1", "3"]


def test_y08_a_run_that_nobody_holds_is_not_held_but_how_it_ended_is_known() -> None:
    here = known(OneRun("1", "a", over=True), OneRun("2", "b"))
    gc.collect()

    assert here.handle(here.find("1")) is None
    assert here.running() == []
    assert here.outcome("1") == Outcome(status="failed", duration_s=1.5, headline="ValueError: wrong")
    assert here.outcome("2") is None


def test_whoever_asks_is_told_when_a_run_begins_or_ends() -> None:
    here, told = KnownRuns(), list[bool]()
    run = OneRun("1", "a")

    def note() -> None:
        told.append(here.outcome("1") is not None)

    here.call_on_change(note)
    here.add(cast("Run", run))
    run.end()
    here.call_no_more(note)
    here.add(cast("Run", OneRun("2", "b")))

    assert told == [False, True]


def test_outcomes_are_kept_for_as_many_runs_as_folders() -> None:
    here = known(*(OneRun(str(number), "a", over=True) for number in range(KEPT_RUNS + 5)))

    assert here.outcome("4") is None
    assert here.outcome("5") is not None


def test_a_run_that_goes_on_is_known_however_many_follow() -> None:
    here = known(OneRun("first", "a"), *(OneRun(str(number), "a", over=True) for number in range(KEPT_RUNS + 5)))

    assert [one.run_id for one in here.all()][:2] == ["first", "6"]
    assert len(here.all()) == KEPT_RUNS
    assert here.outcome("5") is None


def test_a_kernel_without_a_run_has_none_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KNOWN, "_known", type(KNOWN._known)())

    with pytest.raises(InvalidArgument, match=r"attach: this kernel has launched no run yet\."):
        attach()
