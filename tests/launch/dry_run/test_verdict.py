"""What a measured step means for a launch, by hand-made reports."""

from __future__ import annotations

import pytest

from accel_nb.launch.dry_run.verdict import findings, fitting_batch_size, notes, step_sentence
from accel_nb.protocol.events import DryRunReport, UnusedParameters
from accel_nb.protocol.plan import DryRunPlan, PlannedDevice

GIB = 1 << 30
STEP = DryRunReport(
    stepped=True,
    batch_size=100,
    batch_bytes=1 * GIB,
    parameter_bytes=2 * GIB,
    gradient_bytes=2 * GIB,
    bucket_bytes=2 * GIB,
    optimizer_bytes=4 * GIB,
    activation_bytes=10 * GIB,
    fixed_activation_bytes=1 * GIB,
)
"""11 GiB whatever the batch, 10 GiB for a batch of 100."""


def device(memory_gib: float, used_gib: float = 0, *, index: int = 0) -> PlannedDevice:
    return PlannedDevice(
        label=f"cuda:{index} NVIDIA H100",
        memory_bytes=int(memory_gib * GIB),
        used_bytes=int(used_gib * GIB),
        reserved_bytes=GIB,
    )


def found(*devices: PlannedDevice, report: DryRunReport = STEP) -> tuple[str, ...]:
    return findings(DryRunPlan(devices=devices), {0: report}, 1)


def test_a_step_that_fits_is_no_finding() -> None:
    assert found(device(22)) == ()
    assert found(device(24, 2)) == ()


def test_a_step_that_does_not_fit_is_told_with_figures_and_a_batch_that_fits() -> None:
    (text,) = found(device(20, 1))

    assert text == (
        "Rank 0 would not fit: a step takes about 22.0 GiB (parameters 2.0 GiB, gradients 2.0 GiB, "
        "DistributedDataParallel's copies of gradients 2.0 GiB, optimizer state 4.0 GiB, saved for backward 10.0 GiB, "
        "batch 1.0 GiB, 1.0 GiB for context and communicator), 3.0 GiB more than is free on cuda:0 NVIDIA H100 (20.0 "
        "GiB, of which 1.0 GiB are in use). A batch of about 63 instead of 100 would fit, by this estimate; "
        "gradient_accumulation_steps keeps the effective batch."
    )


def test_of_several_devices_the_tightest_is_told() -> None:
    (text,) = found(device(30), device(21, index=1), device(18, index=2), device(20, index=3))

    assert text.startswith("Ranks 1-3 would not fit: a step on rank 2 takes about 22.0 GiB (")
    assert "4.0 GiB more than is free on cuda:2 NVIDIA H100 (18.0 GiB)." in text


def test_ranks_that_took_no_part_are_judged_by_the_largest_step() -> None:
    small = DryRunReport(stepped=True, batch_size=1, batch_bytes=1)
    planned = DryRunPlan(devices=(device(30), device(16), device(16)))

    (text,) = findings(planned, {0: STEP, 1: small}, 2)

    assert text.startswith("Rank 2 would not fit: ")


def test_a_model_that_does_not_fit_alone_is_told() -> None:
    (text,) = found(device(11.5))

    assert text.endswith(
        "Not even a batch of 1 would fit: use a smaller model, an optimizer with less state, or a device with more "
        "memory."
    )


def test_without_a_known_batch_no_size_is_suggested() -> None:
    unknown = DryRunReport(stepped=True, activation_bytes=30 * GIB)

    (text,) = found(device(20), report=unknown)

    assert text.endswith("Use less data per step, or a smaller model.")


@pytest.mark.parametrize(("memory_gib", "fitting"), [(12, 0), (13, 9), (22, 90), (32, 180)])
def test_the_batch_that_fits_leaves_a_tenth_of_the_room(memory_gib: float, fitting: int) -> None:
    assert fitting_batch_size(STEP, device(memory_gib)) == fitting


def test_memory_that_is_not_known_is_a_note() -> None:
    planned = DryRunPlan(devices=(device(0), device(80, index=1)))

    assert findings(planned, {0: STEP, 1: STEP}, 2) == ()
    assert notes(planned, {0: STEP, 1: STEP}) == (
        "The memory of cuda:0 NVIDIA H100 is not known: what a step takes was not compared with it.",
    )


def test_many_names_are_cut() -> None:
    unused = UnusedParameters(model="Net", names=tuple(f"w{n}" for n in range(12)), awaited=True)

    (text,) = found(device(80), report=DryRunReport(stepped=True, unused=(unused,)))

    assert text.startswith("Rank 0: 'w0', 'w1', 'w2', 'w3', 'w4', 'w5', 'w6', 'w7', 'w8', 'w9' and 2 more of Net got ")


def test_ranks_that_miss_different_gradients_are_told_apart() -> None:
    reports = {
        rank: DryRunReport(stepped=True, unused=(UnusedParameters(model="Net", names=(name,), awaited=True),))
        for rank, name in enumerate(("a", "b", "a"))
    }

    texts = findings(DryRunPlan(devices=(device(80),) * 3), reports, 3)

    assert [text.partition(" got ")[0] for text in texts] == ["Ranks 0, 2: 'a' of Net", "Rank 1: 'b' of Net"]


def test_a_step_in_one_sentence() -> None:
    assert step_sentence(DryRunReport(stepped=True, batch_size=1000, parameter_bytes=3 << 20)) == (
        "one step with a batch of 1,000 takes about 3.0 MiB (parameters 3.0 MiB)"
    )
