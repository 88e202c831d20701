"""Whether ranks in standby may take memory of devices, and when they must give it back."""

from __future__ import annotations

import pytest

from accel_nb.launch.keeper.standby_room import StandbyRoom
from accel_nb.protocol.commands import RunOrder, StandbyOrder, Surroundings
from accel_nb.protocol.plan import LaunchPlan, RankPlan
from tests.launch.keeper.fake_devices import GIB, FakeDevice

SURROUNDINGS = Surroundings(variables={}, cwd=b"/", sys_path=(), argv=(), umask=0o022, locale="C")


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice({"FAKE_VISIBLE": "0,1"})


def room(device: FakeDevice, *, free_times: float = 8.0, alone: bool = True) -> StandbyRoom:
    plan = LaunchPlan(
        run_id="run",
        function_name="train",
        engine="local",
        device_kind="fake",
        process_group="gloo",
        ranks=tuple(RankPlan(rank=rank, local_rank=rank, device_label=f"fake:{rank}") for rank in range(2)),
        env={"FAKE_VISIBLE": "0,1"},
    )
    like = RunOrder(plan=plan, surroundings=SURROUNDINGS, log_dir="/")
    return StandbyRoom(StandbyOrder(like=like, idle_s=1.0, free_times=free_times, alone=alone), device)


def settled(device: FakeDevice, *, alone: bool = True) -> StandbyRoom:
    """With the set's own ranks on the devices."""
    made = room(device, free_times=8.0 if alone else 2.0, alone=alone)
    device.used_bytes = [GIB, GIB]
    device.holders = [((10, GIB),), ((11, GIB),)]
    made.settle()
    return made


def test_devices_that_nobody_uses_are_taken(device: FakeDevice) -> None:
    # A driver takes a little.
    device.used_bytes = [3 << 20, 3 << 20]

    assert room(device).refusal() == ""


def test_a_device_that_somebody_holds_is_not_taken(device: FakeDevice) -> None:
    device.holders[1] = ((7, 0),)

    assert room(device).refusal() == "fake:1 is in use"


def test_used_memory_shows_somebody_whom_a_container_hides(device: FakeDevice) -> None:
    device.used_bytes[0] = 400 << 20

    assert room(device).refusal() == "fake:0 is in use"
    assert room(device, alone=False).refusal() == ""


def test_memory_must_be_free_many_times(device: FakeDevice) -> None:
    device.used_bytes[1] = 17 * GIB

    assert room(device, alone=False).refusal() == "fake:1 has less than 8.0 GiB free"
    assert room(device, free_times=2.0, alone=False).refusal() == ""


def test_devices_that_tell_nothing_are_not_taken(device: FakeDevice) -> None:
    device.used_bytes, device.holders = [], []

    assert room(device).refusal() == "nothing is known of how the devices are used"


def test_the_sets_own_memory_is_nobody_elses(device: FakeDevice) -> None:
    assert settled(device).need() == ""


def test_a_process_that_comes_needs_the_device(device: FakeDevice) -> None:
    made = settled(device)
    device.holders[0] = (*device.holders[0], (12, 0))

    assert made.need() == "somebody else has begun to use fake:0"


def test_memory_that_grows_is_needed_by_somebody(device: FakeDevice) -> None:
    made = settled(device)
    device.used_bytes[1] += 100 << 20

    assert made.need() == "somebody else has begun to use fake:1"


def test_a_set_that_was_asked_for_stays_until_memory_runs_short(device: FakeDevice) -> None:
    made = settled(device, alone=False)
    device.used_bytes[0] = 20 * GIB
    shared = made.need()
    device.used_bytes[0] = 23 * GIB

    assert shared == ""
    assert made.need() == "fake:0 has less than 2.0 GiB free"
