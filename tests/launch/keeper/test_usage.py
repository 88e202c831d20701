"""What the ranks take of the machine, sampled."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from accel_nb.launch.keeper.usage import (
    BASELINE_AFTER_S,
    EVERY_S,
    FIRST_AFTER_S,
    DeviceReader,
    UsageRecord,
    UsageWatch,
    tree_taken,
    watch_usage,
)
from accel_nb.launch.recording import recorded_events
from accel_nb.protocol.events import RankUsage
from accel_nb.protocol.hardware import DeviceFigures
from accel_nb.protocol.plan import LaunchPlan, RankPlan
from tests.launch.launching import DEADLINE_S, start

GIB = 1 << 30
OWN = os.getpid()
NOBODY = 2**22 + 1
"""Beyond the largest pid that there is."""
CPU_RANKS = (RankPlan(rank=0, local_rank=0), RankPlan(rank=1, local_rank=1))
GPU_RANKS = tuple(RankPlan(rank=rank, local_rank=rank, device_index=rank) for rank in range(2))
HOLDING = """
import os, sys
if pid := os.fork():
    os.waitpid(pid, 0)
else:
    held = bytearray(b"x") * (100 << 20)
    print("holds", flush=True)
    sys.stdin.read()
"""


def wait_until_recorded(place: Path) -> None:
    """On a rank: until the record of the run, whose folder is in the file `place`, has a sample of each rank."""
    while not place.exists() or {event.rank for event in samples_of(Path(place.read_text()))} != {0, 1}:
        time.sleep(0.1)


def samples_of(log_dir: Path) -> list[RankUsage]:
    return [event for event in recorded_events(log_dir) if isinstance(event, RankUsage)]


@pytest.fixture
def reading() -> Iterator[Callable[[Callable[[], Sequence[DeviceFigures]]], DeviceReader]]:
    """Makes readers, whose threads are over when the test is."""
    made: list[DeviceReader] = []

    def make(read: Callable[[], Sequence[DeviceFigures]]) -> DeviceReader:
        made.append(DeviceReader(read))
        return made[-1]

    yield make
    for reader in made:
        reader.close()
    for thread in threading.enumerate():
        if thread.name == "accel_nb devices":
            thread.join(60)


Reading = Callable[[Callable[[], Sequence[DeviceFigures]]], DeviceReader]


def answered(watch: UsageWatch) -> list[RankUsage]:
    """The first samples that have figures of devices. The clock is made up."""
    end = time.monotonic() + 60
    for number in itertools.count():
        samples = watch.look(number * EVERY_S, {0: OWN, 1: NOBODY})
        if samples and samples[0].device_memory_bytes:
            return samples
        assert time.monotonic() < end
        time.sleep(0.01)
    raise AssertionError


def test_u11_a_sample_holds_the_memory_and_the_cpus_of_each_rank_that_runs() -> None:
    watch = UsageWatch(CPU_RANKS, None)

    assert watch.look(10.0, {0: OWN}) == []
    assert watch.look(10.0 + BASELINE_AFTER_S, {0: OWN}) == []
    burn_until = os.times().user + 0.2
    while os.times().user < burn_until:
        sum(range(10_000))
    [usage] = watch.look(10.0 + FIRST_AFTER_S, {0: OWN})

    assert (usage.rank, usage.device_memory_bytes, usage.device_utilization) == (0, 0, None)
    assert usage.memory_bytes > 10 << 20
    assert usage.cpus >= 0.2, "0.2 s of CPU within half a second"
    assert watch.look(10.0 + FIRST_AFTER_S + EVERY_S / 2, {0: OWN}) == []
    assert [one.rank for one in watch.look(10.0 + FIRST_AFTER_S + EVERY_S, {0: OWN, 1: OWN})] == [0, 1]


def test_u11_what_a_rank_has_started_counts_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"holds\n"

        tree, taken = tree_taken(parent.pid)
        parent.communicate(b"")

    assert len(tree) == 2
    assert taken.memory_bytes > 100 << 20


def test_a_process_that_is_gone_takes_nothing() -> None:
    watch = UsageWatch(CPU_RANKS, None)
    watch.look(0.0, {0: NOBODY})
    watch.look(BASELINE_AFTER_S, {0: NOBODY})

    [usage] = watch.look(FIRST_AFTER_S, {0: NOBODY})

    assert (usage.memory_bytes, usage.cpus) == (0, 0.0)


def test_w06_a_rank_with_a_device_has_its_figures_and_its_own_share(reading: Reading) -> None:
    first = DeviceFigures(memory_bytes=80 * GIB, memory_used_bytes=9 * GIB, utilization=0.5, holders=((OWN, 7 * GIB),))
    second = DeviceFigures(memory_bytes=80 * GIB, memory_used_bytes=3 * GIB, holders=((OWN, 7 * GIB),))

    held, other = answered(UsageWatch(GPU_RANKS, reading(lambda: (first, second))))

    assert (held.device_memory_bytes, held.device_used_bytes) == (80 * GIB, 9 * GIB)
    assert (held.device_own_bytes, held.device_utilization) == (7 * GIB, 0.5)
    assert (other.device_used_bytes, other.device_own_bytes, other.device_utilization) == (3 * GIB, None, None)


def test_a_driver_that_does_not_answer_keeps_nobody_waiting(reading: Reading) -> None:
    hangs = threading.Event()
    watch = UsageWatch(GPU_RANKS, reading(lambda: (hangs.wait(60), ())[1]))

    samples = [watch.look(now, {0: OWN}) for now in (0.0, 2.0, 4.0, 6.0)]
    hangs.set()

    assert [len(sample) for sample in samples] == [0, 0, 1, 1]
    assert samples[-1][0].device_memory_bytes == 0


def test_ranks_on_the_cpu_need_no_thread_for_their_figures() -> None:
    plan = LaunchPlan(
        run_id="r", function_name="f", engine="local", device_kind="cpu", process_group="gloo", ranks=CPU_RANKS
    )
    before = threading.active_count()

    watch = watch_usage(plan)

    assert threading.active_count() == before
    watch.close()


def test_the_record_of_a_run_of_days_holds_some_hundreds_of_samples_per_rank() -> None:
    record = UsageRecord(begun_s=0.0)
    days_s = 3 * 24 * 3600
    samples = [RankUsage(rank=0, memory_bytes=1, cpus=1.0, time_s=time_s) for time_s in range(0, days_s, 2)]

    kept = [usage.time_s for usage in samples if record.keeps(usage)]

    assert kept[:50] == [sample.time_s for sample in samples[:50]]
    assert 200 < len(kept) < 800
    assert record.keeps(RankUsage(rank=1, memory_bytes=1, cpus=1.0, time_s=days_s)), "of another rank"


def test_u11_a_run_tells_the_usage_of_its_ranks_and_records_it(tmp_path: Path) -> None:
    texts: list[str] = []
    run = start(wait_until_recorded, tmp_path / "place", write=texts.append)
    whole = tmp_path / "whole"
    whole.write_text(str(run.log_dir))
    whole.rename(tmp_path / "place")
    run.draw()
    run.result(timeout_s=DEADLINE_S)

    for rank in (0, 1):
        known = run.state.ranks[rank]
        assert known.usage is not None
        assert known.peak_memory_bytes > 1 << 20
        assert len(known.busy) >= 1
    assert "memory" not in "".join(texts)
