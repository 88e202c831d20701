"""Dry runs on real ranks: where they end, what they measure, what they say."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from accel_nb import debug_launcher, notebook_launcher
from accel_nb.launch.dry_run.result import DryRun
from accel_nb.protocol.events import DryRunReport

from . import dry_run_code as code
from .launching import Launched, launch, start

pytestmark = pytest.mark.faults

MIB = 1 << 20


def dry(function: Callable[..., object], *args: object, **options: object) -> tuple[DryRun, Launched]:
    launched = launch(function, *args, dry_run=True, **options)
    result = launched.run.result(timeout_s=0)
    assert isinstance(result, DryRun)
    return result, launched


def report_of(result: DryRun, rank: int = 0) -> DryRunReport:
    report = result.reports[rank]
    assert report is not None
    return report


@pytest.mark.parametrize(
    ("function", "batch_size"),
    [
        (code.with_accelerator, 32),
        (code.one_model_without_ranks, 8),
        (code.catching_errors, 32),
        (code.unused_on_purpose, 8),
        (code.with_closure, 8),
        (code.with_closure_after_gradients, 8),
        (code.recomputing, 8),
        (code.with_accelerate, 8),
        (code.searching_for_a_batch_size, 16),
    ],
)
def test_a_function_ends_with_its_first_step(function: Callable[[], object], batch_size: int) -> None:
    result, launched = dry(function)

    assert result.ok, repr(result)
    assert "went on" not in launched.text
    assert [report.stepped for report in map(report_of, [result] * 2, (0, 1))] == [True, True]
    assert report_of(result).batch_size == batch_size
    assert report_of(result).gradient_bytes > 0
    assert launched.run.state.status == "finished"


def test_a_trainer_ends_with_its_first_step(tmp_path: Path) -> None:
    pytest.importorskip("transformers")

    result, launched = dry(code.with_trainer, str(tmp_path))

    assert "went on" not in launched.text
    report = report_of(result)
    assert (report.stepped, report.batch_size) == (True, 4)
    assert min(report.parameter_bytes, report.optimizer_bytes, report.activation_bytes, report.bucket_bytes) > 0


def test_parts_are_measured() -> None:
    result, _ = dry(code.with_accelerator)

    report = report_of(result)
    parameters = 4 * (16 * 64 + 64 + 64 * 64 + 64 + 64 + 1)
    assert report.parameter_bytes == report.gradient_bytes == report.bucket_bytes == parameters
    assert 2 * parameters <= report.optimizer_bytes <= 2 * parameters + 6 * 4  # Adam's moments and step counts
    assert report.batch_bytes == 32 * 16 * 4
    assert report.activation_bytes == 2 * 32 * 64 * 4  # what ReLU and Tanh gave; the batch counts by itself
    assert report.fixed_activation_bytes == 0


def test_half_precision_halves_what_is_saved_and_counts_the_weights_copies() -> None:
    result, _ = dry(code.with_accelerator, mixed_precision="bf16")

    report = report_of(result)
    assert report.parameter_bytes == 4 * (16 * 64 + 64 + 64 * 64 + 64 + 64 + 1)
    weights = 2 * (64 * 64 + 64)
    growing = report.activation_bytes - report.fixed_activation_bytes
    assert report.fixed_activation_bytes == weights
    assert 2 * 32 * 64 * 2 <= growing <= 2 * 32 * 64 * 2 + 32 * 16 * 2  # and the batch in bf16


def test_recomputed_activations_are_not_held() -> None:
    result, launched = dry(code.recomputing)

    assert report_of(result).activation_bytes <= 3 * 8 * 64 * 4
    assert "Warning" not in launched.text


def test_optimizers_that_step_within_the_backward_all_do_so() -> None:
    result, launched = dry(code.stepping_within_backward)

    assert "went on" not in launched.text
    report = report_of(result)
    layer = 4 * (4 * 4 + 4)
    assert (report.stepped, report.batch_size, report.parameter_bytes) == (True, 8, 3 * layer)
    assert 0 < report.gradient_bytes < 2 * layer, "not all at one time"
    assert 2 * 2 * layer <= report.optimizer_bytes <= 2 * 2 * layer + 4 * 4  # of both layers that take part
    assert report.unused == ()
    assert result.ok


def test_a_compiled_model_is_its_users_model() -> None:
    result, launched = dry(code.compiled)

    assert [one.names for one in report_of(result).unused] == [("left_out.weight", "left_out.bias")]
    assert report_of(result).batch_size == 8
    assert "Warning" not in launched.text


def test_all_micro_batches_of_a_step_are_run() -> None:
    _, launched = dry(code.accumulating)

    lines = [line for line in launched.run.logs(0).splitlines() if line.startswith("micro-batch")]
    assert lines == [f"micro-batch {number}" for number in range(3)]


def test_steps_that_the_scaler_skipped_are_none() -> None:
    result, launched = dry(code.overflowing_first, mixed_precision="fp16")

    assert report_of(result).stepped
    assert "step 1 did not happen" in launched.text
    assert "step 5 did not happen" not in launched.text


def test_unused_parameters_are_a_finding_where_ranks_wait_for_them() -> None:
    result, _ = dry(code.plain_torch)

    assert not result.ok
    (finding,) = result.findings
    assert finding.startswith(
        "Ranks 0-1: 'left_out.weight', 'left_out.bias' of Branches got no gradient in the step. "
        "DistributedDataParallel waits for each parameter on every rank, so the second step would fail. "
    )
    assert repr(result).splitlines()[0] == "DryRun of plain_torch for 2 ranks: 1 problem"


def test_unused_parameters_are_a_note_where_nothing_waits_for_them() -> None:
    for function, kwargs in (
        (code.one_model_without_ranks, {}),
        (code.plain_torch, {"find_unused_parameters": True}),
    ):
        result, _ = dry(function, kwargs=kwargs)

        assert result.ok
        (note,) = result.notes
        assert note == (
            "Ranks 0-1: 'left_out.weight', 'left_out.bias' of Branches got no gradient in the step: not trained, "
            "though nothing waits for it."
        )


def test_a_model_whose_optimizer_did_not_step_is_not_accused() -> None:
    result, _ = dry(code.adversaries)

    assert result.ok
    assert result.notes == (
        "The state of 1 other optimizer, made at a step that did not come yet, is not part of the estimate.",
    )
    assert report_of(result).parameter_bytes == 4 * (4 * 4 + 4 + 4 + 1)


def test_code_that_catches_everything_cannot_step_again() -> None:
    result, launched = dry(code.catching_everything)

    assert result.ok
    assert launched.run.logs(0).count("caught") == 3
    assert "went on" not in launched.text


def test_what_fails_on_the_way_out_is_no_failure() -> None:
    result, launched = dry(code.failing_on_the_way_out)

    assert result.ok
    assert "IndexError" not in launched.text


def test_a_step_in_a_thread_is_a_step() -> None:
    result, launched = dry(code.in_a_thread)

    assert result.ok
    assert "went on" not in launched.text


def test_functions_that_refuse_hooks_work() -> None:
    result, launched = dry(code.functional_gradients)

    assert result.ok
    assert "gradient [2.0, 2.0]" in launched.run.logs(0)


@pytest.mark.parametrize("function", [code.scripted, code.traced, code.functional_gradients_in_a_thread])
def test_code_that_looks_into_modules_and_hooks_works(function: Callable[[], object]) -> None:
    result, launched = dry(function)

    assert result.ok, repr(result)
    assert report_of(result).stepped
    assert "Warning" not in launched.text
    assert "went on" not in launched.text


def test_tensors_without_data_are_measured_like_others() -> None:
    result, _ = dry(code.on_meta_tensors)

    report = report_of(result)
    assert report.parameter_bytes == report.gradient_bytes == 4 * (16 * 64 + 64 + 64 * 64 + 64 + 64 + 1)
    assert report.activation_bytes == 2 * 8 * 64 * 4
    assert report.batch_bytes == 8 * 16 * 4


def test_of_a_sharded_model_each_rank_counts_its_shard() -> None:
    result, _ = dry(code.sharded)

    shard = 4 * (16 * 32 + 32 + 64 * 32 + 32 + 64 + 1)  # the last layer's single row is padded on the other rank
    assert [report_of(result, rank).parameter_bytes for rank in (0, 1)] == [shard, shard]
    assert report_of(result).gradient_bytes == shard
    assert result.findings == result.notes == ()


def test_a_step_without_gradients_is_none() -> None:
    result, launched = dry(code.calming_the_scheduler)

    assert result.ok, repr(result)
    assert report_of(result).gradient_bytes > 0
    assert "went on" not in launched.text


def test_models_that_their_first_call_makes_are_measured() -> None:
    result, _ = dry(code.made_by_its_first_call)

    assert report_of(result).parameter_bytes == report_of(result).gradient_bytes == 4 * (4 * 8 + 8)


def test_parameters_of_no_model_are_measured() -> None:
    result, _ = dry(code.without_a_model)

    report = report_of(result)
    assert (report.parameter_bytes, report.gradient_bytes, report.optimizer_bytes) == (400, 400, 804)


def test_parameters_of_another_optimizer_are_not_accused() -> None:
    result, _ = dry(code.adversaries_in_one_module)

    (note,) = result.notes
    assert note.startswith("The state of 1 other optimizer")


def test_parameters_that_are_awaited_inside_a_larger_module_are_found() -> None:
    result, _ = dry(code.part_of_a_module_without_ranks)

    (finding,) = result.findings
    assert finding.startswith("Ranks 0-1: 'left_out.weight', 'left_out.bias' of Branches got no gradient in the step. ")
    assert report_of(result).bucket_bytes == 2 * 4 * (4 * 4 + 4)


def test_parameters_that_ranks_were_told_to_ignore_are_not_waited_for() -> None:
    result, _ = dry(code.left_to_itself)

    assert result.ok
    assert result.notes == ()
    assert report_of(result).bucket_bytes == 4 * (4 * 4 + 4)


def test_what_fails_after_the_step_is_no_failure() -> None:
    result, launched = dry(code.using_what_never_came)

    assert result.ok
    assert "IndexError" not in launched.text


def test_a_function_that_leaves_before_its_step_is_not_said_to_be_fine() -> None:
    result, _ = dry(code.leaving)

    (finding,) = result.findings
    assert finding.startswith("The function returned without an optimizer step")


def test_a_function_without_a_step_says_so() -> None:
    result, launched = dry(code.without_step)

    assert not result.ok
    (finding,) = result.findings
    assert finding == (
        "The function returned without an optimizer step, or none had gradients: there is nothing to say about memory. "
        "A dry run is for functions that train with torch's optimizers; this one has run to its end, on the CPU."
    )
    assert "dry run: the function returned without an optimizer step" in launched.text


def test_a_rank_without_a_step_is_named() -> None:
    result, _ = dry(code.step_on_rank_0_only)

    assert result.ok  # rank 0 has made its step without waiting
    assert (
        "Rank 1 returned without an optimizer step, and others made theirs without waiting for that: right when ranks "
        "have different parts, else their models are not trained together."
    ) in result.notes


def test_what_fails_before_the_step_fails_the_dry_run() -> None:
    launched = launch(code.failing, dry_run=True)

    assert launched.failure.exc_type == "ValueError"
    assert "a mistake before the first step" in str(launched.failure)


def test_a_rank_that_waits_for_one_which_the_dry_run_ended_is_told_why() -> None:
    failure = launch(code.one_learns_from_the_other, dry_run=True).failure

    assert "Rank 0 has returned" in str(failure) or "rank 0 has returned" in str(failure)
    assert str(failure).splitlines()[-2].startswith("What it means: In a dry run each rank ends at its first optimizer")


def test_a_gpu_that_the_launch_would_not_have_either_is_explained_as_ever() -> None:
    failure = launch(code.naming_cuda, "tensor", dry_run=True).failure

    assert "What it means: There is no GPU that torch can use in this rank" in str(failure)


def test_a_failure_can_be_returned() -> None:
    result, _ = dry(code.failing, on_failure="return")

    assert not result.ok
    assert result.reports == (None, None)
    assert repr(result).splitlines()[:2] == [
        "DryRun of failing for 2 ranks: 1 problem",
        "- ValueError: a mistake before the first step",
    ]


def test_a_dry_run_is_not_restarted() -> None:
    assert launch(code.failing, dry_run=True, max_restarts=2).failure.attempts == 1


def test_checks_are_on_unless_they_were_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCELERATE_DEBUG_MODE", raising=False)

    for asked, on in ((None, True), (True, True), (False, False)):
        run = start(code.without_step, dry_run=True, debug=asked)
        run.draw()
        assert run.plan.debug is on


def test_the_launcher_gives_the_dry_run_back() -> None:
    result = notebook_launcher(code.with_accelerator, (16,), num_processes=1, device="cpu", dry_run=True)

    assert isinstance(result, DryRun)
    assert list(result) == list(result.reports)
    assert repr(result).startswith(
        "DryRun of with_accelerator for 1 rank: nothing wrong was found.\nRank 0: one step with a batch of 16 takes "
        "about "
    )


def test_a_launch_afterwards_is_an_ordinary_one() -> None:
    dry(code.with_accelerator)

    assert list(debug_launcher(code.with_accelerator)) == ["value", "value"]


def test_reports_can_be_kept() -> None:
    result, _ = dry(code.one_model_without_ranks)

    assert repr(pickle.loads(pickle.dumps(result))) == repr(result)
