from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from accel_nb.devices import find_devices
from accel_nb.devices.base import DeviceBase
from accel_nb.devices.cpu import CpuDevice
from accel_nb.errors import (
    AccelNbError,
    EngineUnavailable,
    InvalidArgument,
    NotEnoughDevices,
    PlanError,
    UnknownDevice,
)
from accel_nb.launch.planning.checks import check_arguments, check_system, plain_int
from accel_nb.launch.planning.planner import check, make_plan, plan_line
from accel_nb.protocol.environment import rank_variables
from accel_nb.protocol.hardware import DeviceInfo, NodeHardware, SavedConfig
from accel_nb.protocol.plan import LaunchPlan, LaunchRequest, Timeouts

from .machines import CPU_ONLY, FOUR_GPUS, gpu, gpu_machine


def plan(hardware: NodeHardware = CPU_ONLY, *, kernel_env: dict[str, str] | None = None, **asked: object) -> LaunchPlan:
    return make_plan(LaunchRequest(**asked), hardware, kernel_env=kernel_env or {}, run_id="r1")  # type: ignore[arg-type]


def refusal(kind: type[AccelNbError], hardware: NodeHardware = CPU_ONLY, /, **asked: object) -> str:
    with pytest.raises(AccelNbError) as caught:
        plan(hardware, **asked)  # type: ignore[arg-type]  # wrong types are part of the tests
    assert type(caught.value) is kind
    return str(caught.value)


class TestNumberOfRanks:
    @pytest.mark.parametrize("count", [1, 2, 5, 64])
    def test_n01_any_number_of_cpu_ranks_is_exactly_that_number(self, count: int) -> None:
        planned = plan(num_processes=count, device="cpu")

        assert [rank.rank for rank in planned.ranks] == list(range(count))
        assert [rank.local_rank for rank in planned.ranks] == list(range(count))
        assert {rank.device_label for rank in planned.ranks} == {"cpu"}
        assert {rank.device_index for rank in planned.ranks} == {None}
        assert (planned.device_kind, planned.process_group, planned.engine) == ("cpu", "gloo", "local")

    @pytest.mark.parametrize("count", [1, 2, 3, 4])
    def test_l12_any_possible_number_of_gpu_ranks_is_exactly_that_number(self, count: int) -> None:
        planned = plan(FOUR_GPUS, num_processes=count)

        assert [rank.device_index for rank in planned.ranks] == list(range(count))
        assert (planned.device_kind, planned.process_group) == ("cuda", "nccl")
        assert planned.asked_num_processes == count

    def test_l12_more_ranks_than_gpus_are_refused(self) -> None:
        assert refusal(NotEnoughDevices, gpu_machine(gpu(0), gpu(1)), num_processes=3) == (
            "num_processes=3, but box has 2 cuda devices for this kernel (cuda:0 NVIDIA H100, cuda:1 NVIDIA H100), and "
            "each rank needs its own. Ask for at most 2, or pass device='cpu' for 3 CPU ranks."
        )

    def test_l12_the_refusal_says_that_a_variable_hides_the_others(self) -> None:
        hidden = replace(gpu_machine(gpu(2)), visible_ids={"cuda": ("2",)})

        text = refusal(NotEnoughDevices, hidden, num_processes=2)

        assert "each rank needs its own; CUDA_VISIBLE_DEVICES='2' limits them. Ask for 1, or" in text

    def test_l13_default_is_one_rank_per_visible_gpu(self) -> None:
        planned = plan(FOUR_GPUS)

        assert planned.num_ranks == 4
        assert planned.asked_num_processes is None
        assert "device='auto': cuda, 4 visible." in planned.reasons
        assert "num_processes left out: one rank per visible cuda device, 4." in planned.reasons

    def test_l13_default_without_accelerator_is_one_cpu_rank(self) -> None:
        planned = plan()

        assert planned.num_ranks == 1
        assert "device='auto': cpu, no accelerator can be used." in planned.reasons
        assert "num_processes left out: 1 rank on the CPU." in planned.reasons

    def test_l13_one_process_on_a_gpu_machine_uses_a_gpu(self) -> None:
        planned = plan(FOUR_GPUS, num_processes=1)

        assert planned.ranks[0].device_label == "cuda:0 NVIDIA H100"
        assert "devices left out: the first 1 of 4, cuda:0 NVIDIA H100." in planned.reasons

    def test_more_ranks_than_cpus_is_said(self) -> None:
        assert "9 ranks share 8 CPUs: they take turns." in plan(num_processes=9).reasons

    @pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
    def test_a_count_that_is_none_is_refused(self, value: object) -> None:
        assert refusal(InvalidArgument, num_processes=value) == (
            f"num_processes={value!r}: give a whole number of at least 1, or leave it out for one rank per visible "
            "accelerator."
        )


class TestDeviceKind:
    def test_l13_cuda_without_cuda_is_refused_and_never_the_cpu(self) -> None:
        assert refusal(UnknownDevice, device="cuda") == (
            "device='cuda': no cuda device can be used on box. device='cpu' runs the ranks on the CPU."
        )

    def test_l13_the_refusal_names_the_variable_that_hides_the_gpus(self) -> None:
        hidden = replace(CPU_ONLY, visible_ids={"cuda": ()})

        assert "on box (CUDA_VISIBLE_DEVICES='' is set in this kernel). " in refusal(
            UnknownDevice, hidden, device="cuda"
        )

    def test_l13_the_refusal_passes_on_what_the_count_contradicted(self) -> None:
        note = "The driver lists 2 cuda devices, but torch can use none of them in this environment."
        broken = replace(CPU_ONLY, notes=(note,))

        assert f"on box ({note[:-1]}). " in refusal(UnknownDevice, broken, device="cuda")

    def test_l13_gpus_that_torch_cannot_use_are_announced_before_a_cpu_run(self) -> None:
        note = "The driver lists 2 cuda devices, but torch can use none of them in this environment."

        assert note in plan(replace(CPU_ONLY, notes=(note,))).reasons

    def test_l17_a_cpu_launch_on_a_gpu_machine_hides_the_gpus(self) -> None:
        planned = plan(FOUR_GPUS, device="cpu", num_processes=2)

        assert planned.env["CUDA_VISIBLE_DEVICES"] == ""
        assert planned.device_kind == "cpu"

    def test_unknown_kind_lists_the_known_ones(self) -> None:
        assert refusal(UnknownDevice, device="gpu") == (
            "device='gpu' is not known; allowed: 'auto', 'cpu', 'cuda', 'mps', 'tpu', 'xpu'. Single devices are chosen "
            "with devices=[...]."
        )

    @pytest.mark.parametrize("kind", ["xpu", "mps", "tpu"])
    def test_l13_x03_an_accelerator_that_is_not_here_is_refused(self, kind: str) -> None:
        assert refusal(UnknownDevice, device=kind) == (
            f"device={kind!r}: no {kind} device can be used on box. device='cpu' runs the ranks on the CPU."
        )

    @pytest.mark.parametrize("count", [None, 1, 8])
    def test_x02_x03_auto_on_a_tpu_machine_never_takes_the_cpu_silently(self, count: int | None) -> None:
        tpu_machine = replace(
            CPU_ONLY, tpu_evidence="/dev/accel0", unusable={"tpu": "/dev/accel0 was found, but not its library."}
        )

        assert refusal(EngineUnavailable, tpu_machine, num_processes=count) == (
            "/dev/accel0 was found, but not its library. Or device='cpu' runs the ranks on the CPU."
        )
        assert refusal(EngineUnavailable, tpu_machine, device="tpu", num_processes=count) == (
            "device='tpu': /dev/accel0 was found, but not its library."
        )

    def test_x03_detection_order_gpu_with_xla_installed_takes_the_gpu_and_says_so(self) -> None:
        both = replace(FOUR_GPUS, tpu_evidence="/dev/accel0")

        planned = plan(both)

        assert planned.device_kind == "cuda"
        assert "The TPU of this machine (/dev/accel0) is not used: device='auto'." in planned.reasons

    def test_x03_cpu_by_name_on_a_tpu_machine(self) -> None:
        planned = plan(replace(CPU_ONLY, tpu_evidence="TPU_NAME=local"), device="cpu", num_processes=2)

        assert plan_line(planned).startswith("2 ranks on cpu ")


class TestChosenDevices:
    def test_l14_rank_r_computes_on_devices_r(self) -> None:
        planned = plan(FOUR_GPUS, devices=(1, 3))

        assert [rank.device_label for rank in planned.ranks] == ["cuda:1 NVIDIA H100", "cuda:3 NVIDIA H100"]
        assert [rank.device_index for rank in planned.ranks] == [0, 1]
        assert planned.env == {"CUDA_VISIBLE_DEVICES": "GPU-1aaa,GPU-3aaa"}

    def test_l14_the_given_order_is_kept(self) -> None:
        assert plan(FOUR_GPUS, devices=(3, 1)).env["CUDA_VISIBLE_DEVICES"] == "GPU-3aaa,GPU-1aaa"

    def test_l14_positions_are_composed_with_what_the_kernel_sees(self) -> None:
        sees = replace(gpu_machine(gpu(4), gpu(5), gpu(6), gpu(7)), visible_ids={"cuda": ("4", "5", "6", "7")})
        kernel_env = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}

        planned = plan(sees, kernel_env=kernel_env, devices=(1, 3))

        assert [rank.device_label for rank in planned.ranks] == ["cuda:5 NVIDIA H100", "cuda:7 NVIDIA H100"]
        assert planned.env["CUDA_VISIBLE_DEVICES"] == "GPU-5aaa,GPU-7aaa"
        assert kernel_env == {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}

    def test_l14_without_ids_the_machines_numbering_is_used(self) -> None:
        unnamed = gpu_machine(*(DeviceInfo(index=index) for index in (4, 5, 6, 7)))

        planned = plan(unnamed, devices=(3, 0))

        assert planned.env["CUDA_VISIBLE_DEVICES"] == "7,4"
        assert [rank.device_label for rank in planned.ranks] == ["cuda:7", "cuda:4"]

    @pytest.mark.parametrize("name", ["GPU-2aaa", "gpu-2aaa", "GPU-2"])
    def test_l14_ids_and_their_beginnings(self, name: str) -> None:
        assert plan(FOUR_GPUS, devices=(name,)).env["CUDA_VISIBLE_DEVICES"] == "GPU-2aaa"

    def test_device_cuda_and_count_may_be_said_as_well(self) -> None:
        assert plan(FOUR_GPUS, devices=(2, 0), device="cuda", num_processes=2).num_ranks == 2

    @pytest.mark.parametrize("name", [4, -1, "GPU-9", "", True])
    def test_a_device_that_is_not_visible_is_refused_with_the_list(self, name: object) -> None:
        machine = gpu_machine(gpu(2), DeviceInfo(index=3))

        assert refusal(UnknownDevice, machine, devices=(name,)) == (
            f"devices: {name!r} is not among the cuda devices visible to this kernel. Allowed, by position or id: "
            "0 = cuda:2 NVIDIA H100 (GPU-2aaa); 1 = cuda:3."
        )

    def test_an_ambiguous_beginning_is_refused(self) -> None:
        assert refusal(UnknownDevice, gpu_machine(gpu(0), gpu(1)), devices=("GPU-",)) == (
            "devices: 'GPU-' is the beginning of several ids (GPU-0aaa, GPU-1aaa); give more of it."
        )

    @pytest.mark.parametrize("names", [(1, 1), (0, 1, "GPU-1aaa")])
    def test_a_device_named_twice_is_refused(self, names: tuple[int | str, ...]) -> None:
        assert refusal(InvalidArgument, FOUR_GPUS, devices=names) == (
            f"devices={list(names)!r} names cuda:1 NVIDIA H100 twice; each rank needs a device of its own."
        )

    def test_no_device_is_refused(self) -> None:
        assert refusal(InvalidArgument, FOUR_GPUS, devices=()) == (
            "devices=[] chooses nothing; leave it out for all visible devices."
        )

    def test_a_count_that_contradicts_the_devices_is_refused(self) -> None:
        assert refusal(InvalidArgument, FOUR_GPUS, devices=(0, 1), num_processes=3) == (
            "num_processes=3, but devices=[0, 1] names 2; leave num_processes out, each device named gets one rank."
        )

    def test_devices_of_the_cpu_are_refused(self) -> None:
        assert refusal(InvalidArgument, FOUR_GPUS, devices=(0,), device="cpu") == (
            "devices=[0] chooses accelerators, and device='cpu' has none to choose from; num_processes= says how many "
            "ranks share it."
        )

    def test_devices_without_any_accelerator_are_refused(self) -> None:
        assert refusal(UnknownDevice, devices=(0, 1)) == (
            "devices=[0, 1]: no accelerator can be used on box. Leave devices out for CPU ranks."
        )


class TestAnnouncements:
    def test_unequal_memory_is_announced(self) -> None:
        planned = plan(gpu_machine(gpu(0), gpu(1, name="NVIDIA A10", memory_gib=24)))

        assert (
            "The devices are unequal (cuda:0 NVIDIA H100 80.0 GiB, cuda:1 NVIDIA A10 24.0 GiB): the smallest memory, "
            "24.0 GiB, caps the batch, the slowest device sets the pace."
        ) in planned.reasons

    def test_only_chosen_devices_are_compared(self) -> None:
        machine = gpu_machine(gpu(0), gpu(1, name="NVIDIA A10", memory_gib=24), gpu(2, memory_gib=79.5))

        assert not any("unequal" in reason for reason in plan(machine, devices=(0, 2)).reasons)

    def test_same_name_with_other_memory_is_unequal(self) -> None:
        machine = gpu_machine(gpu(0), gpu(1, memory_gib=40))

        assert any("unequal" in reason and "40.0 GiB, caps" in reason for reason in plan(machine).reasons)

    def test_memory_held_by_the_kernel_is_announced(self) -> None:
        planned = plan(gpu_machine(gpu(0), gpu(1, used_gib=2, kernel_gib=1.5)))

        told = [reason for reason in planned.reasons if "holds" in reason or "hold " in reason]
        assert told == [
            (
                "This kernel itself holds 1.5 GiB on cuda:1 NVIDIA H100, which the rank there cannot use; delete what "
                "holds it and call torch.cuda.empty_cache(), or restart the kernel."
            )
        ]

    def test_memory_held_by_others_is_announced_above_a_tenth(self) -> None:
        planned = plan(gpu_machine(gpu(0, used_gib=8), gpu(1, used_gib=9)))

        assert [reason for reason in planned.reasons if "hold" in reason] == [
            "Others hold 9.0 GiB of 80.0 GiB on cuda:1 NVIDIA H100."
        ]

    def test_devices_without_figures_announce_nothing(self) -> None:
        planned = plan(gpu_machine(DeviceInfo(index=0), DeviceInfo(index=1)))

        assert not any("unequal" in reason or "hold" in reason for reason in planned.reasons)

    def test_the_line_of_a_cpu_run(self) -> None:
        planned = plan(num_processes=8)

        assert plan_line(planned) == "8 ranks on cpu (asked: 8), gloo, 1 thread each, precision no"

    def test_the_line_of_a_gpu_run(self) -> None:
        assert plan_line(plan(FOUR_GPUS, devices=(3, 1), mixed_precision="bf16")) == (
            "2 ranks on cuda:3 NVIDIA H100, cuda:1 NVIDIA H100 (asked: default), nccl, 4 threads each, precision bf16"
        )

    def test_x03_the_line_never_says_gpu_or_cuda_without_one(self) -> None:
        line = plan_line(plan()).lower()

        assert "gpu" not in line
        assert "cuda" not in line


class TestThreads:
    @pytest.mark.parametrize(("ranks", "threads"), [(1, 8), (2, 4), (3, 2), (8, 1), (20, 1)])
    def test_cpus_are_shared_out(self, ranks: int, threads: int) -> None:
        planned = plan(num_processes=ranks)

        assert {rank.cpu_threads for rank in planned.ranks} == {threads}
        assert "OMP_NUM_THREADS" not in planned.env

    def test_the_share_has_a_reason(self) -> None:
        assert "2 threads per rank: 8 CPUs for 3 ranks." in plan(num_processes=3).reasons

    def test_the_kernels_own_setting_wins(self) -> None:
        planned = plan(kernel_env={"OMP_NUM_THREADS": "3"}, num_processes=4)

        assert planned.ranks[0].cpu_threads == 3
        assert planned.env["OMP_NUM_THREADS"] == "3"
        assert "OMP_NUM_THREADS=3 of the kernel's environment decides about threads: 3 per rank." in planned.reasons

    def test_env_wins_over_the_kernel(self) -> None:
        planned = plan(kernel_env={"OMP_NUM_THREADS": "3"}, num_processes=4, env={"OMP_NUM_THREADS": "5,2"})

        assert planned.ranks[0].cpu_threads == 5
        assert planned.env["OMP_NUM_THREADS"] == "5,2"

    @pytest.mark.parametrize("value", ["0", "many", "", "-2"])
    def test_a_bad_value_in_env_is_refused(self, value: str) -> None:
        assert refusal(InvalidArgument, env={"OMP_NUM_THREADS": value}) == (
            f"env: OMP_NUM_THREADS is {value!r}; give a whole number of at least 1."
        )

    def test_a_bad_value_in_the_kernel_is_no_setting(self) -> None:
        assert plan(kernel_env={"OMP_NUM_THREADS": "many"}).ranks[0].cpu_threads == 8


class TestEnvironment:
    def test_variables_of_other_launchers_are_removed_with_a_reason(self) -> None:
        kernel_env = {
            "RANK": "3", "WORLD_SIZE": "8", "MASTER_PORT": "29500", "SLURM_PROCID": "0", "SLURM_NTASKS": "4",
            "OMPI_COMM_WORLD_RANK": "1", "PMI_RANK": "1", "SLURM_JOB_ID": "77", "SLURM_TMPDIR": "/scratch",
            "HOME": "/h", "HYDRA_FULL_ERROR": "1", "I_MPI_ROOT": "/opt", "OMPI_MCA_btl": "tcp",
        }  # fmt: skip

        planned = plan(kernel_env=kernel_env)

        assert planned.env_removed == (
            "MASTER_PORT", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "SLURM_NTASKS", "SLURM_PROCID", "WORLD_SIZE",
        )  # fmt: skip
        tail = "uses such variables to number its own processes."
        assert [reason for reason in planned.reasons if reason.startswith("Hidden")] == [
            f"Hidden from the ranks: MASTER_PORT, RANK and WORLD_SIZE; torchrun {tail}",
            f"Hidden from the ranks: OMPI_COMM_WORLD_RANK and PMI_RANK; MPI {tail}",
            f"Hidden from the ranks: SLURM_NTASKS and SLURM_PROCID; SLURM {tail}",
        ]

    def test_a_clean_kernel_hides_nothing(self) -> None:
        planned = plan(kernel_env={"HOME": "/h"})

        assert planned.env_removed == ()
        assert not any(reason.startswith("Hidden") for reason in planned.reasons)

    def test_what_the_caller_gives_is_never_removed(self) -> None:
        planned = plan(kernel_env={"SLURM_PROCID": "0"}, env={"SLURM_PROCID": "5", "MY_FLAG": "1"})

        assert planned.env_removed == ()
        assert {"SLURM_PROCID": "5", "MY_FLAG": "1"}.items() <= planned.env.items()

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("RANK", ""),
            ("LOCAL_RANK", ""),
            ("WORLD_SIZE", " (num_processes= says how many)"),
            ("MASTER_ADDR", ""),
            ("MASTER_PORT", " (use_port= chooses it)"),
            ("TORCHELASTIC_RUN_ID", ""),
            ("ACCELERATE_MIXED_PRECISION", " (mixed_precision= chooses it)"),
            ("ACCELERATE_USE_CPU", " (device='cpu' chooses it)"),
        ],
    )
    def test_the_rank_contract_cannot_be_overruled(self, name: str, hint: str) -> None:
        assert refusal(InvalidArgument, env={name: "1"}) == (
            f"env: {name} cannot be set, each rank gets its own from the launcher{hint}; take it out of env."
        )

    def test_visibility_cannot_be_set_by_env(self) -> None:
        assert refusal(InvalidArgument, env={"CUDA_VISIBLE_DEVICES": "1"}) == (
            "env: CUDA_VISIBLE_DEVICES cannot be set, the launcher composes it; choose with devices=[...] or "
            "device='cpu'."
        )

    @pytest.mark.parametrize("name", ["", "A=B", "A\0B", 3])
    def test_a_name_that_is_none_is_refused(self, name: object) -> None:
        assert refusal(InvalidArgument, env={name: "1"}) == f"env: {name!r} cannot be the name of a variable."

    @pytest.mark.parametrize("value", [1, None, "a\0b"])
    def test_a_value_that_is_no_text_is_refused(self, value: object) -> None:
        assert refusal(InvalidArgument, env={"MY_FLAG": value}) == (
            f"env: MY_FLAG is {value!r}; the value of a variable is a str without NUL."
        )

    def test_an_interface_chosen_in_the_kernel_is_kept(self) -> None:
        planned = plan(kernel_env={"GLOO_SOCKET_IFNAME": "eth0"})

        assert planned.env["GLOO_SOCKET_IFNAME"] == "eth0"

    def test_debug_is_told_to_the_ranks(self) -> None:
        planned = plan(debug=True)

        assert rank_variables(planned, planned.ranks[0], port=1, attempt=0)["ACCELERATE_DEBUG_MODE"] == "1"

    def test_upstreams_debug_mode_of_the_kernel_passes_unless_the_call_says_otherwise(self) -> None:
        kernel_env = {"ACCELERATE_DEBUG_MODE": "1"}

        assert plan(kernel_env=kernel_env).env["ACCELERATE_DEBUG_MODE"] == "1"
        assert "ACCELERATE_DEBUG_MODE" not in plan(kernel_env=kernel_env, debug=False).env


class TestSources:
    def test_l18_the_call_is_named_as_source(self) -> None:
        planned = plan(num_processes=2, device="cpu")

        assert planned.reasons[0] == "Settings: num_processes and device from the call, the rest are defaults."

    def test_l18_all_defaults(self) -> None:
        assert plan().reasons[0] == "Settings: all defaults."

    def test_l18_a_settings_file_is_named_with_what_it_decides_and_what_has_no_effect(self) -> None:
        file, notice = "/h/default_config.yaml", "/h/default_config.yaml: fsdp_config: no effect."
        origins = {"mixed_precision": file, "num_processes": "the call"}

        planned = plan(mixed_precision="no", num_processes=2, origins=origins, settings_file=file, notices=(notice,))

        settings = f"Settings: num_processes from the call, mixed_precision from {file}, the rest are defaults."
        assert planned.notable == planned.reasons[:2] == (settings, notice)

    def test_l18_accelerates_own_file_is_named_when_another_is_read(self) -> None:
        file = "/h/default_config.yaml"
        saved = replace(CPU_ONLY, saved_config=SavedConfig(path=file))

        assert plan(saved, settings_file="/h/ours.yaml").notable[1] == f"Ignored: {file}; /h/ours.yaml is read instead."
        assert plan(saved, settings_file=file).notable == ("Settings: all defaults.",)
        assert plan(saved).notable == ()

    def test_l18_an_overruled_variable_is_named(self) -> None:
        planned = plan(kernel_env={"ACCELERATE_MIXED_PRECISION": "bf16"})

        assert planned.mixed_precision == "no"
        assert planned.reasons[1] == (
            "Ignored: ACCELERATE_MIXED_PRECISION=bf16 of the kernel's environment; mixed_precision='no' decides."
        )

    def test_l18_a_variable_that_agrees_is_not_mentioned(self) -> None:
        planned = plan(kernel_env={"ACCELERATE_MIXED_PRECISION": "bf16"}, mixed_precision="bf16")

        assert not any("Ignored" in reason for reason in planned.reasons)
        assert planned.notable == ()

    def test_l18_what_is_ignored_is_shown_after_what_is_listened_to(self) -> None:
        planned = plan(kernel_env={"ACCELERATE_USE_CPU": "1"})

        assert planned.notable == (
            "Settings: all defaults.",
            "Ignored: ACCELERATE_USE_CPU=1 of the kernel's environment; device='auto' decides.",
        )

    def test_l18_variables_that_reach_the_ranks_are_shown_as_a_source(self) -> None:
        kernel_env = {"ACCELERATE_DEBUG_MODE": "1", "ACCELERATE_LOG_LEVEL": "info", "HOME": "/h"}

        assert plan(kernel_env=kernel_env, num_processes=2).notable == (
            (
                "Settings: num_processes from the call, ACCELERATE_DEBUG_MODE=1 and ACCELERATE_LOG_LEVEL=info from the "
                "kernel's environment, the rest are defaults."
            ),
        )

    def test_l18_what_the_calls_own_env_sets_comes_from_the_call(self) -> None:
        planned = plan(kernel_env={"ACCELERATE_LOG_LEVEL": "info"}, env={"ACCELERATE_LOG_LEVEL": "debug"})

        assert planned.reasons[0] == "Settings: env from the call, the rest are defaults."
        assert planned.notable == ()

    def test_l18_a_debug_mode_that_the_call_overrules_is_named(self) -> None:
        assert plan(kernel_env={"ACCELERATE_DEBUG_MODE": "1"}, debug=False).notable[1:] == (
            "Ignored: ACCELERATE_DEBUG_MODE=1 of the kernel's environment; debug=False decides.",
        )


class TestForkedRanks:
    def test_variables_that_come_too_late_are_told(self) -> None:
        env = {"TORCH_LOGS": "dynamo", "PYTHONHASHSEED": "1", "MINE": "2", "OMP_NUM_THREADS": "3", "MKL_DYNAMIC": "0"}

        planned = plan(start_method="fork", env=env, kernel_env={"MKL_DYNAMIC": "0"})

        assert planned.notable == (
            (
                "start_method='fork': PYTHONHASHSEED and TORCH_LOGS of env may do nothing; such variables are read "
                "when Python or a library is loaded, and ranks are copies of this kernel, which has done that. Leave "
                "start_method out and they count."
            ),
        )
        assert planned.notable[0] in planned.reasons

    @pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
    def test_in_a_new_interpreter_they_count(self, start_method: str) -> None:
        assert plan(start_method=start_method, env={"TORCH_LOGS": "dynamo"}).notable == ()


class TestEngine:
    @pytest.mark.parametrize("backend", ["auto", "local"])
    def test_local_processes(self, backend: str) -> None:
        assert plan(backend=backend).engine == "local"

    def test_a_process_group_is_no_engine(self) -> None:
        assert refusal(InvalidArgument, backend="nccl") == (
            "backend='nccl' names no engine: gloo and nccl follow from the device; leave backend out."
        )


class TestSettings:
    def test_what_passes_unchanged(self) -> None:
        asked = {
            "start_method": "spawn", "mixed_precision": "bf16", "max_restarts": 2, "monitor_interval": 0.5,
            "returns": "main", "on_failure": "return", "log_line_prefix_template": "[${role_name}${rank}]",
            "timeouts": Timeouts(start_s=9), "function_name": "train",
        }  # fmt: skip

        planned = plan(**asked)  # type: ignore[arg-type]

        assert {name: getattr(planned, name) for name in asked} == asked
        assert (planned.run_id, planned.debug, planned.rendezvous_host) == ("r1", None, "127.0.0.1")

    @pytest.mark.parametrize(("asked", "port"), [(None, None), (0, None), (29500, 29500), ("29500", 29500)])
    def test_port(self, asked: object, port: int | None) -> None:
        assert plan(use_port=asked).rendezvous_port == port

    @pytest.mark.parametrize("value", [-1, 65536, "http", 1.5, True])
    def test_no_port(self, value: object) -> None:
        assert refusal(InvalidArgument, use_port=value) == (
            f"use_port={value!r}: a port is a whole number from 1 to 65535; leave use_port out and a free port is "
            "chosen."
        )

    @pytest.mark.parametrize(
        ("name", "value", "allowed"),
        [
            ("start_method", "thread", "'forkserver', 'spawn', 'fork'"),
            ("returns", "none", "'all', 'main'"),
            ("on_failure", "ignore", "'raise', 'return'"),
            ("mixed_precision", "fp64", "'no', 'bf16', 'fp16'"),
        ],
    )
    def test_choices(self, name: str, value: str, allowed: str) -> None:
        assert (
            refusal(InvalidArgument, CPU_ONLY, **{name: value}) == f"{name}={value!r} is not known; allowed: {allowed}."
        )

    def test_a_wrong_value_is_a_value_error_too(self) -> None:
        with pytest.raises(ValueError, match="mixed_precision='fp64'"):
            plan(mixed_precision="fp64")

    def test_fp8_has_not_been_built(self) -> None:
        assert refusal(PlanError, mixed_precision="fp8") == (
            "mixed_precision='fp8' is not part of this version: use 'bf16', 'fp16' or 'no'."
        )

    def test_fp16_needs_a_device_that_can(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert plan(FOUR_GPUS, mixed_precision="fp16").mixed_precision == "fp16"
        assert plan(CPU_ONLY, mixed_precision="fp16").mixed_precision == "fp16"
        monkeypatch.setattr(CpuDevice, "precisions", frozenset({"no", "bf16"}))
        assert refusal(PlanError, mixed_precision="fp16") == (
            "mixed_precision='fp16' is not possible on cpu; allowed there: 'bf16', 'no'."
        )

    @pytest.mark.parametrize("value", [-1, 0.5, None, True])
    def test_max_restarts(self, value: object) -> None:
        assert refusal(InvalidArgument, max_restarts=value) == (
            f"max_restarts={value!r}: give a whole number of at least 0."
        )

    @pytest.mark.parametrize("value", [0, -0.1, float("nan"), float("inf"), "1", True])
    def test_monitor_interval(self, value: object) -> None:
        assert refusal(InvalidArgument, monitor_interval=value) == (
            f"monitor_interval={value!r}: give a number of seconds above 0."
        )

    @pytest.mark.parametrize("name", ["start_s", "rendezvous_s", "stalled_s", "stop_grace_s"])
    def test_timeouts(self, name: str) -> None:
        assert refusal(InvalidArgument, timeouts=Timeouts(**{name: 0})) == (
            f"timeouts.{name}=0: give a number of seconds above 0."
        )

    @pytest.mark.parametrize("template", ["", "plain", "$$", "[${role_name}${rank}]:", "$local_rank "])
    def test_prefix_template(self, template: str) -> None:
        assert plan(log_line_prefix_template=template).log_line_prefix_template == template

    def test_prefix_template_with_an_unknown_field(self) -> None:
        assert refusal(InvalidArgument, log_line_prefix_template="${host} ${rank}") == (
            "log_line_prefix_template='${host} ${rank}': ${host} is not known; allowed: ${role_name}, ${rank}, "
            "${local_rank}."
        )

    def test_prefix_template_that_is_none(self) -> None:
        assert refusal(InvalidArgument, log_line_prefix_template="$ {rank}") == (
            "log_line_prefix_template='$ {rank}' is no string.Template: write $$ for a dollar sign, and ${role_name}, "
            "${rank}, ${local_rank} for what each rank fills in."
        )

    def test_n07_the_ranks_of_all_nodes_are_planned(self) -> None:
        planned = plan(num_nodes=2, node_rank=1, num_processes=2, master_addr="10.0.0.1", use_port=29500)

        assert (planned.engine, planned.rendezvous_port) == ("elastic", None)
        assert [(rank.rank, rank.local_rank, rank.node) for rank in planned.ranks] == [
            (0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1),
        ]  # fmt: skip
        assert {rank.host for rank in planned.ranks if rank.node == 0} == {""}
        assert plan_line(planned).startswith("4 ranks on cpu (asked: 2 on each of 2 nodes), gloo, ")
        assert any(
            reason == "2 nodes of 2 ranks each meet at 10.0.0.1:29500, by torch's 'static' rendezvous; this is node 1."
            for reason in planned.reasons
        )

    def test_master_addr(self) -> None:
        assert plan(master_addr="localhost").rendezvous_host == "127.0.0.1"

    @pytest.mark.parametrize("value", [1, "yes", None])
    def test_dry_run(self, value: object) -> None:
        assert refusal(InvalidArgument, dry_run=value) == f"dry_run={value!r}: give True or False."

    def test_memory_snapshot(self) -> None:
        assert plan(FOUR_GPUS, memory_snapshot=True).memory_snapshot is True
        assert refusal(InvalidArgument, memory_snapshot=1) == "memory_snapshot=1: give True or False."
        assert refusal(PlanError, FOUR_GPUS, memory_snapshot=True, device="cpu") == (
            "memory_snapshot=True records what is allocated on a GPU, and these ranks compute on cpu, where torch "
            "keeps no such record; leave memory_snapshot out."
        )


class TestPlatform:
    @pytest.mark.parametrize(
        ("platform", "text"),
        [
            ("win32", "accel_nb does not run on Windows itself: start Jupyter inside WSL 2, where it does."),
            ("darwin", "macOS support has not landed in this version of accel_nb: it runs on Linux."),
            ("freebsd14", "accel_nb runs on Linux, and this platform calls itself 'freebsd14'."),
        ],
    )
    def test_only_linux(self, platform: str, text: str) -> None:
        assert refusal(PlanError, replace(CPU_ONLY, platform=platform)) == text


class Npu(DeviceBase):
    """Another package's hardware, as one object."""

    kind = torch_type = "npu"
    process_group = "hccl"
    preference = 200
    precisions = frozenset({"no", "bf16"})
    visibility_variables = ("NPU_VISIBLE",)

    def probe(self) -> tuple[DeviceInfo, ...]:
        return (DeviceInfo(index=0), DeviceInfo(index=1))

    def count(self) -> int:
        return 2

    def visible_ids(self, variables: Mapping[str, str]) -> tuple[str, ...] | None:
        return tuple(variables["NPU_VISIBLE"].split()) if "NPU_VISIBLE" in variables else None

    def env_for(self, chosen: Sequence[DeviceInfo]) -> dict[str, str]:
        return {"NPU_VISIBLE": " ".join(str(device.index) for device in chosen)}


class TestNewHardware:
    """No line of the planner knows this kind."""

    KINDS = (*find_devices(), Npu())
    MACHINE = replace(FOUR_GPUS, devices={**FOUR_GPUS.devices, "npu": Npu().probe()})

    def planned(self, **asked: object) -> LaunchPlan:
        return make_plan(
            LaunchRequest(**asked),  # type: ignore[arg-type]
            self.MACHINE,
            kernel_env={},
            run_id="r1",
            kinds=self.KINDS,
        )

    def test_the_preferred_kind_is_taken_by_auto(self) -> None:
        planned = self.planned()

        assert (planned.device_kind, planned.process_group, planned.num_ranks) == ("npu", "hccl", 2)
        assert planned.env == {"NPU_VISIBLE": "0 1"}

    def test_it_can_be_named_and_chosen_from(self) -> None:
        planned = self.planned(device="npu", devices=(1,))

        assert planned.env == {"NPU_VISIBLE": "1"}
        assert planned.ranks[0].device_label == "npu:1"

    def test_a_cpu_run_hides_it_too(self) -> None:
        assert self.planned(device="cpu").env == {"NPU_VISIBLE": "", "CUDA_VISIBLE_DEVICES": ""}

    def test_its_variable_cannot_be_set_by_env(self) -> None:
        with pytest.raises(InvalidArgument, match="env: NPU_VISIBLE cannot be set"):
            self.planned(env={"NPU_VISIBLE": "0"})

    def test_it_is_asked_which_precisions_it_has(self) -> None:
        with pytest.raises(PlanError, match="'fp16' is not possible on npu; allowed there: 'bf16', 'no'"):
            self.planned(mixed_precision="fp16")


class TestCheckBeforePacking:
    def test_what_no_machine_could_do_is_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="max_restarts=-1"):
            check(LaunchRequest(max_restarts=-1))
        with pytest.raises(InvalidArgument, match="env: CUDA_VISIBLE_DEVICES cannot be set"):
            check(LaunchRequest(env={"CUDA_VISIBLE_DEVICES": "1"}))

    def test_what_depends_on_the_machine_is_left_to_the_plan(self) -> None:
        check(LaunchRequest(device="cuda", num_processes=1000))


class TestTypesOfArguments:
    def refused(self, **given: object) -> str:
        asked: dict[str, object] = {"args": (), "kwargs": None, "devices": None, "env": None, "timeouts": None, **given}
        with pytest.raises(InvalidArgument) as caught:
            check_arguments(**asked)
        return str(caught.value)

    @pytest.mark.parametrize("args", [(), [], (1, "a"), [None], range(3)])
    def test_a_sequence_of_arguments_is_taken(self, args: Sequence[object]) -> None:
        check_arguments(
            args=args, kwargs={"a": 1}, devices=[0, "GPU-1"], env={"A": "b"}, timeouts=Timeouts(start_s=1.0)
        )

    @pytest.mark.parametrize(("args", "shown"), [(5, "5"), ("abc", "'abc'"), (None, "None"), (b"abc", "b'abc'")])
    def test_one_argument_alone_is_not_taken_for_several(self, args: object, shown: str) -> None:
        assert self.refused(args=args) == (
            f"args={shown} is one argument, not a sequence of them: write args=({shown},), or leave args out for none."
        )

    def test_arguments_by_name_have_a_place_of_their_own(self) -> None:
        assert self.refused(args={"a": 1}).endswith("For arguments by name write kwargs={'a': 1}.")

    def test_a_large_argument_is_shown_on_one_short_line(self) -> None:
        text = self.refused(args=np.zeros((100, 100)))

        assert text.startswith("args=array(")
        assert "\n" not in text
        assert len(text) < 200

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"kwargs": [1]}, "kwargs=[1] is no mapping: write kwargs={'name': value}."),
            ({"kwargs": 0}, "kwargs=0 is no mapping: write kwargs={'name': value}."),
            ({"kwargs": {1: 2}}, "kwargs: 1 cannot be the name of an argument; names are str."),
            ({"env": "A=b"}, "env='A=b' is no mapping: write env={'NAME': 'value'}."),
            ({"devices": 3}, "devices=3 is one device, not a sequence of them: write devices=[3]."),
            ({"devices": "GPU-1"}, "devices='GPU-1' is one device, not a sequence of them: write devices=['GPU-1']."),
            (
                {"timeouts": 30},
                (
                    "timeouts=30: write Timeouts(start_s=..., rendezvous_s=..., stalled_s=..., stop_grace_s=...), all "
                    "of them in seconds."
                ),
            ),
        ],
    )
    def test_a_wrong_type_is_refused_with_what_to_write(self, given: dict[str, object], text: str) -> None:
        assert self.refused(**given) == text

    @pytest.mark.parametrize(
        ("env", "text"),
        [
            ({1: "a"}, "env: 1 cannot be the name of a variable."),
            ({b"A": "a"}, "env: b'A' cannot be the name of a variable."),
            ({"\udce9": "a"}, r"env: '\udce9' cannot be the name of a variable."),
            ({"A": 1}, "env: A is 1; the value of a variable is a str without NUL."),
            (
                {"A": "\udce9"},
                (
                    r"env: A is '\udce9', which cannot be encoded. Variables of the kernel reach the ranks as they "
                    "are, without env."
                ),
            ),
        ],
    )
    def test_a_variable_that_is_none_is_refused(self, env: dict[object, object], text: str) -> None:
        assert refusal(InvalidArgument, env=env) == text

    @pytest.mark.parametrize("value", [5, ["cuda"]])
    @pytest.mark.parametrize("name", ["device", "log_line_prefix_template"])
    def test_what_has_to_be_a_text_is_asked_for(self, name: str, value: object) -> None:
        assert refusal(InvalidArgument, **{name: value}) == f"{name}={value!r}: give a str."

    @pytest.mark.parametrize("value", [np.int64(2), np.uint8(2), 2])
    def test_a_whole_number_of_any_library_is_one(self, value: object) -> None:
        number = plain_int(value)

        assert number == 2
        assert type(number) is int

    @pytest.mark.parametrize("value", [True, None, "2", 2.0, np.ones(3)])
    def test_anything_else_stays_for_the_checks_to_refuse(self, value: object) -> None:
        assert plain_int(value) is value


class TestWhatTheSystemOffers:
    @pytest.fixture(autouse=True)
    def _looked_at_anew(self) -> Iterator[None]:
        check_system.cache_clear()
        yield
        check_system.cache_clear()

    def test_this_one_offers_all_and_is_asked_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        check(LaunchRequest())
        monkeypatch.delattr(os, "pidfd_open")

        check(LaunchRequest())

    @pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
    def test_without_the_system_call_nothing_is_started(self, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        def pidfd_open(_: int) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "pidfd_open", pidfd_open)

        for _ in range(2):  # a refusal is not remembered
            with pytest.raises(PlanError) as caught:
                check(LaunchRequest())
            assert str(caught.value) == (
                f"The system call pidfd_open, by which ranks are watched, failed here: {os.strerror(number)}. It needs "
                "Linux 5.3 or newer; in a container also a runtime that allows it: use a newer one."
            )

    def test_another_failure_of_it_is_not_hidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def pidfd_open(_: int) -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(os, "pidfd_open", pidfd_open)

        with pytest.raises(OSError, match="Too many open files"):
            check(LaunchRequest())

    def test_a_python_without_it_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "pidfd_open")

        with pytest.raises(PlanError, match=r"no os\.pidfd_open, .* Use a Python that was built for Linux 5\.3"):
            check(LaunchRequest())

    def test_a_proc_without_lists_of_children_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(PlanError, match=r"/children, by which .* does not exist\. .* CONFIG_PROC_CHILDREN"):
            check_system(tmp_path)


def test_every_refusal_is_one_sentence_and_every_reason_ends_like_one() -> None:
    for planned in (plan(), plan(FOUR_GPUS), plan(FOUR_GPUS, devices=(1,), env={"A": "b"}, debug=False)):
        assert all(reason.endswith(".") and "\n" not in reason for reason in planned.reasons)


def test_a_plan_survives_the_wire() -> None:
    planned = plan(FOUR_GPUS, devices=(3, 1), kernel_env={"RANK": "0"}, env={"A": "b"})

    assert msgspec.json.decode(msgspec.json.encode(planned), type=LaunchPlan) == planned
