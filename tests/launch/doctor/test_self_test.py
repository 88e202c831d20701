"""The self-test: real ranks that meet; what breaks it, and the switch that goes round it."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from accel_nb.launch.doctor import self_test
from accel_nb.launch.doctor.self_test import Outcome, try_out
from accel_nb.protocol.plan import LaunchRequest
from tests.launch import faulty_code

pytestmark = pytest.mark.faults

CPU = LaunchRequest(num_processes=2, device="cpu")


def test_k13_ranks_that_work_together_say_so() -> None:
    outcome = try_out(CPU)

    assert outcome.trouble == ""
    assert list(self_test.findings(outcome, CPU, ())) == []
    (fact,) = self_test.facts(outcome)
    assert fact.value.startswith("2 ranks on cpu met over gloo and exchanged right numbers: ")


def test_k13_one_rank_is_enough() -> None:
    (fact,) = self_test.facts(try_out(LaunchRequest(num_processes=1, device="cpu")))

    assert fact.value.startswith("1 rank on cpu met over gloo")


def test_k13_a_broken_interface_is_explained_and_the_switch_that_helps_is_named() -> None:
    broken = LaunchRequest(num_processes=2, device="cpu", env={"GLOO_SOCKET_IFNAME": "nosuch0"})

    outcome = try_out(broken)
    (finding,) = self_test.findings(outcome, broken, ())

    assert finding.severity == "problem"
    assert "Unable to find address for: nosuch0" in finding.what
    assert finding.why == (
        "gloo found no network interface of that name, or no address of this host. rank 0 = cpu; rank 1 = cpu."
    )
    assert finding.remedy == (
        "It works with GLOO_SOCKET_IFNAME=lo: set os.environ['GLOO_SOCKET_IFNAME'] = 'lo' in the kernel before "
        "launching."
    )


def test_k13_when_no_switch_helps_those_that_were_tried_are_named() -> None:
    outcome = try_out(CPU, faulty_code.wrong_numbers)

    (finding,) = self_test.findings(outcome, CPU, (), again=lambda _: outcome)

    assert re.search(r"Rank \d: RuntimeError: rank \d got wrong numbers", finding.what)
    assert finding.remedy == "Tried without success, one at a time: GLOO_SOCKET_IFNAME=lo."


def test_k13_ranks_that_never_come_back_are_ended_and_their_lines_named() -> None:
    outcome = try_out(CPU, faulty_code.never_meets, limit_s=1.0)

    assert outcome.trouble.startswith("They never came back from their first exchange (rank 0: ")
    assert re.search(r"rank 1: .*faulty_code\.py", outcome.trouble)
    assert outcome.plan is not None


def test_k13_what_cannot_be_started_is_told_as_the_plan_says_it() -> None:
    request = LaunchRequest(num_processes=2, device="cpu", use_port=70000)

    outcome = try_out(request)
    (finding,) = self_test.findings(outcome, request, ())

    assert outcome.plan is None
    assert finding.what.startswith("use_port=70000: a port is a whole number from 1 to 65535")
    assert [fact.value for fact in self_test.facts(outcome)] == ["could not be started, see below"]


def test_k13_the_known_switches_of_nccl_are_tried_one_at_a_time() -> None:
    outcome = try_out(CPU, faulty_code.wrong_numbers)
    assert outcome.plan is not None
    on_gpus = replace(outcome, plan=replace(outcome.plan, process_group="nccl"))
    tried: list[dict[str, str] | None] = []

    def again(request: LaunchRequest) -> Outcome:
        tried.append(request.env)
        return replace(on_gpus, trouble="" if request.env == {"NCCL_IB_DISABLE": "1"} else "no")

    (finding,) = self_test.findings(on_gpus, CPU, (), again=again)

    assert tried == [{"NCCL_P2P_DISABLE": "1"}, {"NCCL_SHM_DISABLE": "1"}, {"NCCL_IB_DISABLE": "1"}, None]
    assert finding.remedy.startswith("It works with NCCL_IB_DISABLE=1: ")


def test_k13_what_works_a_second_time_anyhow_is_blamed_on_no_switch() -> None:
    outcome = try_out(CPU, faulty_code.wrong_numbers)

    (finding,) = self_test.findings(outcome, CPU, (), again=lambda _: replace(outcome, trouble=""))

    assert finding.severity == "hint"
    assert finding.what.startswith("Ranks could not work together at first, and then could, with nothing changed. Rank")
    assert "GLOO" not in finding.remedy
