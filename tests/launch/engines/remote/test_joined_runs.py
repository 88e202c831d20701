"""Runs whose ranks are held by several keepers, each beside an agent: results, errors, stops, logs, values."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from accel_nb import RunFailed, Timeouts
from accel_nb.errors import PlanError, StartError
from accel_nb.launch.engines.remote.relay import ANSWER_S
from accel_nb.launch.recording import recorded_events
from accel_nb.protocol.events import LogLines, RankFailed, RunEnded, RunStarted, StopRequested

from ...census import until_up, wait_until
from ...launching import launch, on_ranks, start
from .conftest import Install

pytestmark = pytest.mark.engines


def summed(factor: int) -> tuple[int, str, float]:
    import torch
    import torch.distributed as dist

    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}, pid {os.getpid()}")
    dist.init_process_group("gloo")
    value = torch.full((1,), float(dist.get_rank() + 1))
    dist.all_reduce(value)
    return dist.get_rank(), os.environ["LOCAL_RANK"], value.item() * factor


def raises_on_one() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("no such colour")
    time.sleep(100)


def sleeps() -> None:
    print("up")
    time.sleep(100)


def big(num_bytes: int) -> bytes:
    return os.environ["RANK"].encode() * num_bytes


def floods(num_lines: int) -> None:
    for number in range(num_lines):
        print(f"line {number} of rank {os.environ['RANK']}")
    print("unfinished", end="")


def fails_at_first(marker: str) -> str:
    if os.environ["RANK"] == "1" and not Path(marker).exists():
        Path(marker).touch()
        raise ValueError("the first time")
    return os.environ["TORCHELASTIC_RESTART_COUNT"]


def test_results_come_back_by_rank(loopback: Install) -> None:
    loopback((0,), (1,))

    launched = launch(summed, 2, backend="loopback")

    assert launched.values == [(0, "0", 6.0), (1, "1", 6.0)]
    assert "[r0] rank 0 of 2" in launched.text
    assert "[r1] rank 1 of 2" in launched.text


def test_a_keeper_may_hold_several_ranks(loopback: Install) -> None:
    loopback((0, 1), (2,))

    assert on_ranks(summed, 1, backend="loopback", num_processes=3) == [(0, "0", 6.0), (1, "1", 6.0), (2, "2", 6.0)]


def test_ranks_may_be_fresh_interpreters(loopback: Install) -> None:
    loopback((0,), (1,))

    assert on_ranks(summed, 1, backend="loopback", start_method="spawn") == [(0, "0", 3.0), (1, "1", 3.0)]


def test_the_record_is_that_of_one_run(loopback: Install) -> None:
    loopback()

    launched = launch(summed, 1, backend="loopback")

    events = list(recorded_events(launched.run.log_dir))
    numbers = [event.sequence for event in events]
    assert numbers == sorted(set(numbers))
    assert [type(event) for event in events if isinstance(event, RunStarted | RunEnded)] == [RunStarted, RunEnded]
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunEnded)
    assert {event.rank for event in events if isinstance(event, LogLines)} == {0, 1}
    assert events[0].plan.engine == "loopback"


def test_every_line_of_every_rank_is_in_its_log(loopback: Install) -> None:
    loopback()

    launched = launch(floods, 20_000, backend="loopback")

    for rank in (0, 1):
        lines = [f"line {number} of rank {rank}" for number in range(20_000)]
        assert launched.run.logs(rank) == "\n".join([*lines, "unfinished"])


def test_logs_can_be_read_while_the_run_goes_on(loopback: Install) -> None:
    loopback()
    run = until_up(start(sleeps, backend="loopback"))

    wait_until(lambda: run.logs(1) == "up\n", 60, lambda: f"log: {run.logs(1)!r}")

    run.stop()
    assert run.wait(60)


def test_big_values_and_payloads_travel_in_parts(loopback: Install) -> None:
    loopback()
    blob = os.urandom(5 << 20)

    def measured() -> tuple[int, bytes]:
        return len(blob), blob[:10]

    assert on_ranks(measured, backend="loopback") == [(len(blob), blob[:10])] * 2
    assert on_ranks(big, 3 << 20, backend="loopback") == [b"0" * (3 << 20), b"1" * (3 << 20)]


def test_the_cause_is_the_rank_that_raised(loopback: Install) -> None:
    loopback()

    launched = launch(raises_on_one, backend="loopback")

    failure = launched.failure
    assert (failure.rank, failure.exc_type) == (1, "ValueError")
    assert isinstance(failure.original(), ValueError), "the exception object has come, too"
    assert [other.kind for other in failure.failures] == ["raised", "stopped"]
    events = list(recorded_events(launched.run.log_dir))
    assert [event.by for event in events if isinstance(event, StopRequested)] == ["failure"]
    assert len([event for event in events if isinstance(event, RankFailed)]) == 2


def test_restarts_begin_all_agents_anew(loopback: Install, tmp_path: Path) -> None:
    engine = loopback()

    launched = launch(fails_at_first, str(tmp_path / "marker"), backend="loopback", max_restarts=1)

    assert launched.values == ["1", "1"]
    assert len(engine.agents) == 2


def test_who_does_not_come_is_named(loopback: Install) -> None:
    loopback((0,), (1,), (2,), absent=(1, 2), start_s=3.0)

    run = start(sleeps, backend="loopback", num_processes=3)

    assert run.wait(60)
    with pytest.raises(StartError, match="1 of 3 agents of sleeps came within 3 s; missing: seat 1, seat 2"):
        run.result()


@pytest.mark.slow
def test_who_has_come_waits_for_the_others_longer_than_for_an_answer(loopback: Install) -> None:
    loopback((0,), (1,), absent=(1,), start_s=ANSWER_S + 5.0)

    run = start(sleeps, backend="loopback")

    assert run.wait(100)
    with pytest.raises(StartError, match="1 of 2 agents of sleeps came within 35 s; missing: seat 1"):
        run.result()


def test_a_stop_before_all_have_come_ends_it(loopback: Install) -> None:
    loopback((0,), (1,), absent=(1,))
    run = start(sleeps, backend="loopback")

    run.stop()

    assert run.wait(60)
    assert run.status == "stopped"


def test_other_versions_are_refused(loopback: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    loopback()
    monkeypatch.setattr("accel_nb.launch.engines.remote.joining.versions", lambda: {"torch": "0.1"})

    run = start(sleeps, backend="loopback")

    assert run.wait(60)
    with pytest.raises(StartError, match=r"cannot run sleeps: it has torch .* \(here: 0.1\)"):
        run.result()


def test_the_contact_is_nowhere_to_be_read(loopback: Install) -> None:
    """It lets whoever has it run code in the run's ranks."""
    engine = loopback()
    run = until_up(start(sleeps, backend="loopback"))
    pids = [engine.agents[0].pid(0), run.state.ranks[0].pid]

    for pid in pids:
        said = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        assert b"ACCEL_NB_CONTACT" not in said
        assert b"agent_secret" not in said
    run.stop(0)
    assert run.wait(60)
    assert "agent_secret" not in json.dumps((run.log_dir / "run.jsonl").read_text())


@pytest.mark.parametrize("options", [{"start_method": "fork"}, {"dry_run": True}], ids=str)
def test_what_takes_the_kernels_own_machine_is_refused(loopback: Install, options: dict[str, Any]) -> None:
    loopback()

    with pytest.raises(PlanError, match=rf"{next(iter(options))}=.* is not possible with backend='loopback'"):
        start(sleeps, backend="loopback", **options)


def test_a_rank_that_is_not_ready_in_time_is_named(loopback: Install) -> None:
    loopback()

    launched = launch(summed, 1, backend="loopback", timeouts=Timeouts(start_s=0.01), num_processes=2)

    with pytest.raises((RunFailed, StartError), match=r"was not ready 0\.01 s after its start"):
        launched.run.result()
