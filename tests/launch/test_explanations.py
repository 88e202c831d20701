"""What low-level messages mean: each entry with messages as people met them, and where it is shown."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from accel_nb.errors import TrainingError
from accel_nb.launch.explanations.dry_runs import WITHOUT_DEVICES
from accel_nb.launch.explanations.explaining import BUS_ERROR, KNOWN, explain_death, explain_error, explain_text
from accel_nb.launch.failures import death, describe
from accel_nb.launch.run_failed import MAX_LINES, RunFailed
from accel_nb.launch.views.run_text import RunText
from accel_nb.protocol.events import RankFailed, RunEvent, RunStarted
from accel_nb.protocol.failure import RankFailure
from accel_nb.protocol.run_state import RunState, advance_all
from accel_nb.protocol.wire import event_line
from tests.layering import PROJECT

from . import faulty_code
from .launching import launch
from .test_run_failed import plan

NCCL_ERROR = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, "
GLOO_PAIR = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "

RECORDED: dict[str, Sequence[str]] = {
    "nccl without gpus": (
        "Distributed package doesn't have NCCL built in",
        "ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
    ),
    "nccl duplicate gpu": (
        (f"{NCCL_ERROR}invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.21.5\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 34000"),
    ),
    "nccl shared memory": (
        (f"{NCCL_ERROR}unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
        "Last error:\nError while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888), error: No space "
        "left on device (28)"),
        "include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
        "misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes",
    ),
    "nccl version mismatch": (
        "bootstrap.cc:300 NCCL WARN Bootstrap Root : mismatch in rank count; Mismatched NCCL version detected : rank 1",
        "ImportError: /venv/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister",
    ),
    "nccl no interface": (
        (f"{NCCL_ERROR}internal error - please report this issue to the NCCL developers, NCCL version 2.21.5\n"
        "ncclInternalError: Internal check failed.\nLast error:\nBootstrap : no socket interface found"),
        ("ncclInternalError: Internal check failed.\nLast error:\n"
        "ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)"),
    ),
    "nccl watchdog": (
        ("[rank0]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7753, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600061 "
        "milliseconds before timing out."),
    ),
    "nccl remote exit": (
        (f"{NCCL_ERROR}remote process exited or there was a network error, NCCL version 2.21.5\n"
        "ncclRemoteError: A call "
        "failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\n"
        "socketProgressOpt: Call to recv from 10.0.0.2<33759> failed : Connection reset by peer"),
    ),
    "nccl system error": (
        (f"{NCCL_ERROR}unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.1\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."),
    ),
    "nccl cuda error": (
        (f"{NCCL_ERROR}unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.26.2\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 999 'unknown error'"),
    ),
    "nccl internal error": (
        (f"{NCCL_ERROR}internal error - please report this issue to the NCCL developers, NCCL version 2.18.1\n"
        "ncclInternalError: Internal check failed."),
    ),
    "gloo sizes differ": (
        ("terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at "
        "/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 16 vs "
        "8. Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?"),
        "[enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4",
    ),
    "collectives differ": (
        ("Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint("
        "SequenceNumber=1, OpType=ALLREDUCE, TensorShape=[4]), but Rank 1 is running collective: CollectiveFingerPrint("
        "SequenceNumber=1, OpType=BROADCAST, TensorShape=[4])."),
    ),
    "gloo no interface": (
        ("[enforce fail at /__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. "
        "Unable to find address for: nosuch0"),
    ),
    "gloo cannot connect": (
        "Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:33553: Connection refused",
        "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:1] Connect timeout [10.0.0.2]:21483",
    ),
    "gloo timeout": (
        ("[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for "
        "recv operation to complete"),
        "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Application timeout caused pair closure",
    ),
    "peer closed connection": (
        f"{GLOO_PAIR}Connection closed by peer [127.0.0.1]:13720. This is typically caused by a remote worker",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:525] Read error [127.0.0.1]:2024: Connection reset by peer",
    ),
    "group made twice": ("trying to initialize the default process group twice!",),
    "group not made": (
        "Default process group has not been initialized, please make sure to call init_process_group.",
    ),
    "store address in use": (
        ("The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, "
        "name: EADDRINUSE, message: address already in use"),
    ),
    "address in use": ("[Errno 98] Address already in use",),
    "ddp unused parameters": (
        ("Expected to have finished reduction in the prior iteration before starting a new one. This error indicates "
        "that your module has parameters that were not used in producing loss. You can enable unused parameter "
        "detection by passing the keyword argument `find_unused_parameters=True` to "
        "`torch.nn.parallel.DistributedDataParallel`, and by \nmaking sure all `forward` function outputs participate "
        "in calculating loss. \nParameter indices which did not receive grad for rank 0: 2 3"),
    ),
    "ddp ready twice": (
        ("Expected to mark a variable ready only once. This error is caused by one of the following reasons: 1) Use of "
        "a module parameter outside the `forward` function. Parameter at index 1 has been marked as ready twice."),
    ),
    "ddp models differ": (
        "[1]: params[0] in this process with sizes [3, 2] appears not to match sizes of the same param in process 0.",
        "DDP expects same model across all ranks, but Rank 1 has 4 params, while rank 0 has inconsistent 2 params.",
    ),
    "modified in place": (
        ("one of the variables needed for gradient computation has been modified by an inplace operation: "
        "[torch.FloatTensor [2]] is at version 3; expected version 2 instead. Hint: enable anomaly detection to find "
        "the operation that failed to compute its gradient, with torch.autograd.set_detect_anomaly(True)."),
    ),
    "graph freed": (
        ("Trying to backward through the graph a second time (or directly access saved tensors after they have already "
        "been freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad()."),
    ),
    "shm bus error": (
        ("DataLoader worker (pid 4321) is killed by signal: Bus error. "
        "It is possible that dataloader's workers are out "
        "of shared memory. Please try to raise your shared memory limit."),
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "unable to allocate shared memory(shm) for file </torch_4321_88_1>: No space left on device (28)",
        "unable to resize file </torch_4321_88_1> to the right size: No space left on device (28)",
        "unable to mmap 96 bytes from file </torch_4321_88_1>: Cannot allocate memory (12)",
    ),
    "worker killed": ("DataLoader worker (pid 4321) is killed by signal: Killed. ",),
    "worker exited": (
        "DataLoader worker (pid(s) 4321, 4322) exited unexpectedly",
        "DataLoader worker (pid 4321) is killed by signal: Segmentation fault. ",
    ),
    "too many open files": (
        "received 0 items of ancdata",
        "[Errno 24] Too many open files",
        ("Too many open files. Communication with the workers is no longer possible. Please increase the limit using "
        "`ulimit -n` in the shell or change the sharing strategy by calling "
        "`torch.multiprocessing.set_sharing_strategy('file_system')` at the beginning of your code"),
    ),
    "bootstrapping": (
        ("\n        An attempt has been made to start a new process before the\n"
        "        current process has finished its "
        "bootstrapping phase.\n\n        This probably means that you are not using fork to start your\n        child "
        "processes and you have forgotten to use the proper idiom\n        in the main module:\n"),
    ),
    "cannot be pickled for workers": (
        "Can't pickle local object 'make.<locals>.Data'",
        "Can't get local object 'make.<locals>.collate'",
        "Can't get attribute 'Data' on <module '__main__' (built-in)>",
    ),
    "cuda after fork": (
        ("Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' "
        "start method"),
    ),
    "gpu out of memory": (
        ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.20 GiB is "
        "free. Process 1234 has 77.90 GiB memory in use."),
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 17.53G of 15.48G hbm.",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 34359738368 bytes.",
        "MPS backend out of memory (MPS allocated: 5.05 GB, other allocations: 2.29 GB, max allowed: 6.80 GB).",
        "CUDA error: out of memory",
    ),
    "host out of memory": (
        ("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)"),
        "[Errno 12] Cannot allocate memory",
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
        "MemoryError: Unable to allocate 745. GiB for an array with shape (100000000000,) and data type float64",
    ),
    "invalid device ordinal": (
        "AssertionError: Invalid device id",
        ("CUDA error: invalid device ordinal\nCUDA kernel errors might be asynchronously reported at some other API "
        "call, so the stacktrace below might be incorrect."),
    ),
    "device-side assert": (
        ("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other "
        "API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"),
    ),
    "illegal memory access": ("CUDA error: an illegal memory access was encountered",),
    "cublas not initialized": ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",),
    "cublas execution failed": (
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k, &alpha, a, "
        "lda, b, ldb, &beta, c, ldc)`"),
    ),
    "no kernel image": (
        "CUDA error: no kernel image is available for execution on the device",
        "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.",
    ),
    "driver too old": (
        ("The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by "
        "downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"),
        "CUDA error: CUDA driver version is insufficient for CUDA runtime version",
    ),
    "no driver": (
        "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver",
        "Torch not compiled with CUDA enabled",
        "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
        "No CUDA GPUs are available",
    ),
    "gpu busy or broken": (
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "CUDA error: uncorrectable ECC error encountered",
    ),
    "bf16 unsupported": (
        "Your setup doesn't support bf16/gpu. You need to assign use_cpu if you want to train the model on CPU.",
        "bf16 mixed precision requires PyTorch >= 1.10 and a supported device.",
    ),
    "fp16 unsupported": (
        "fp16 mixed precision requires a GPU (not 'mps').",
        "\"addmm_impl_cpu_\" not implemented for 'Half'",
    ),
    "devices mixed": (
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    ),
    "linux kernel": (
        ("Detected kernel version 4.18.0, which is below the recommended minimum of 5.5.0; this can cause the process "
        "to hang. It is recommended to upgrade the kernel to the minimum version or higher."),
        "This machine's Linux kernel is 4.18.0. Before 5.5.0 distributed training may hang",
    ),
    "launcher in a rank": (
        ("Lightning can't create new processes if CUDA is already initialized. Did you manually call `torch.cuda.*` "
        "functions, have moved the model to the device, or allocated memory on the GPU any other way?"),
        "`Trainer(strategy='ddp_spawn')` is not compatible with an interactive environment. Run your code as a script",
        ("To launch a multi-GPU training from your notebook, the `Accelerator` should only be initialized inside your "
        "training function. Restart your notebook and make sure no cells initializes an `Accelerator`."),
    ),
    "ssh host key": ("Host key verification failed.",),
    "ssh denied": ("ada@node2: Permission denied (publickey,password).",),
    "mpi daemon missing": (
        "bash: line 1: orted: command not found",
        "bash: /opt-mpi/bin/hydra_pmi_proxy: No such file or directory",
    ),
    "mpi daemons did not start": (
        ("ORTE was unable to reliably start one or more daemons.\nThis usually is caused by:\n\n* not finding the "
        "required libraries and/or binaries on one or more nodes."),
        "PRTE has lost communication with a remote daemon.",
        ('[proxy:0:1@node2] HYDU_sock_connect (lib/utils/sock.c:145): unable to connect from "node2" to "node1" '
        "(Connection refused)"),
    ),
}  # fmt: skip
"""Name of an entry -> messages, quoted from torch 2.13's own processes and from reports of its users."""

QUIET = (
    "boom",
    "'NoneType' object has no attribute 'shape'",
    "database at igloo.example: connection closed by peer",
    "mat1 and mat2 shapes cannot be multiplied (4x3 and 4x5)",
    "429 RESOURCE_EXHAUSTED: quota of requests",
    "429 RESOURCE_EXHAUSTED: You exceeded your allocated quota",
    "unable to mmap 4831838208 bytes from file </data/model.bin>: Cannot map memory",
    "unable to resize file </data/samples.bin> to the right size: Disk quota exceeded (122)",
    "bluetooth scan: no interface found",
    "ValueError: invalid device id in configuration: 'front-door'",
)
"""What speaks for itself, or belongs to the user's own libraries."""

PARAMETERS = RECORDED["ddp unused parameters"][0]


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in RECORDED.items() for text in texts])
def test_e10_a_recorded_message_finds_its_explanation(name: str, text: str) -> None:
    known = explain_text(text)

    assert known is not None
    assert known.name == name


def test_k13_two_ranks_on_one_gpu_are_told_with_its_slot() -> None:
    known = explain_text(RECORDED["nccl duplicate gpu"][0])
    other = explain_text("Duplicate GPU detected : rank 2 and rank 5 both on CUDA device 1b31e0")
    plain = explain_text("Duplicate GPU detected")

    assert known is not None
    assert known.meaning.endswith(" These are ranks 1 and 0, on the GPU in PCI slot 0000:34:00.0.")
    assert other is not None
    assert other.meaning.endswith(" These are ranks 2 and 5, on the GPU in PCI slot 0001:b3:1e.0.")
    assert plain is not None
    assert plain.meaning in known.meaning


def test_e10_each_entry_has_a_recorded_message_and_two_sentences() -> None:
    assert [known.name for known in KNOWN] == list(dict.fromkeys(known.name for known in KNOWN))
    assert set(RECORDED) == {known.name for known in KNOWN}
    for known in (*KNOWN, BUS_ERROR):
        assert known.meaning.endswith("."), known.name
        assert known.remedy.endswith("."), known.name
        assert ". " not in known.meaning, known.name


def test_e10_the_documents_list_each_entry() -> None:
    document = (PROJECT / "docs" / "faults.md").read_text(encoding="utf-8")
    rows = [row.split("|")[2] for row in document.splitlines() if row.startswith("| ")]
    listed = [name.strip() for row in rows for name in row.split(",")]

    assert [known.name for known in KNOWN if known.name not in listed] == []


@pytest.mark.parametrize("text", QUIET)
def test_e10_other_messages_stay_as_they_are(text: str) -> None:
    assert explain_text(text) is None


def chained(cause: BaseException | None, context: BaseException, *, suppressed: bool) -> ValueError:
    """What Python makes of ``raise ValueError(...)`` in an except block."""
    error = ValueError("training failed")
    error.__cause__, error.__context__, error.__suppress_context__ = cause, context, suppressed
    return error


def test_e10_both_ends_of_a_very_long_message_are_looked_at() -> None:
    much = "x" * 20_000_000

    found = [explain_text(text) for text in (PARAMETERS + much, f"{much}\n{PARAMETERS}", much + PARAMETERS + much)]

    assert [one is not None for one in found] == [True, True, False]


def test_e10_the_cause_of_an_error_is_looked_at_too() -> None:
    low = RuntimeError(PARAMETERS)

    known = explain_error(chained(low, low, suppressed=True)), explain_error(chained(None, low, suppressed=False))

    assert [None if one is None else one.name for one in known] == ["ddp unused parameters"] * 2


def test_e10_what_was_handled_before_is_no_cause() -> None:
    assert explain_error(chained(None, RuntimeError(PARAMETERS), suppressed=True)) is None


def test_e10_our_own_errors_have_said_what_to_do() -> None:
    error = TrainingError(f"4 parameters got no gradient: {PARAMETERS}")

    assert explain_error(error) is None
    assert describe(error, rank=0).explanation is None


def test_e10_an_error_whose_text_is_broken_has_no_explanation() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise TypeError("no text")

    assert explain_error(Broken()) is None


def test_e10_a_process_that_aborts_is_explained_by_its_last_lines() -> None:
    known = explain_death("SIGABRT", None, ["epoch 1", *RECORDED["gloo sizes differ"][0].splitlines()])

    assert known is not None
    assert known.name == "gloo sizes differ"


@pytest.mark.parametrize(("signal_name", "code"), [("SIGKILL", None), ("SIGTERM", None), (None, 0)])
def test_e10_lines_before_a_signal_from_outside_explain_nothing(signal_name: str | None, code: int | None) -> None:
    assert explain_death(signal_name, code, [RECORDED["gpu out of memory"][0]]) is None


WARNED = (
    "[W ProcessGroupGloo.cpp:740] Warning: Unable to resolve hostname to a (local) address. Using the loopback",
    "[W1128 08:03:14.508882771 TCPStore.cpp:115] recvVector failed: gloo: Connection reset by peer",
    "UserWarning: NVIDIA RTX with CUDA capability sm_120 is not compatible with the current PyTorch installation.",
    "Detected kernel version 4.18.0, which is below the recommended minimum of 5.5.0; this can cause a hang",
)


@pytest.mark.parametrize("line", WARNED)
def test_e10_a_warning_explains_no_death(line: str) -> None:
    assert explain_death(None, 3, [line, "leaving"]) is None


def test_e10_an_explanation_says_which_of_several_errors_it_is_about() -> None:
    """An error in an except block may have nothing to do with what was caught there."""
    low = RuntimeError(PARAMETERS)

    (first, later) = explain_error(low), explain_error(chained(None, low, suppressed=False))

    assert first is not None
    assert later is not None
    assert later.meaning == f"About the RuntimeError that came first: {first.meaning}"


WITHOUT_DEVICE = (
    AssertionError("Torch not compiled with CUDA enabled"),
    AttributeError("module 'torch._C' has no attribute '_cuda_setDevice'"),
    RuntimeError("Distributed package doesn't have NCCL built in"),
    ValueError("Your setup doesn't support bf16/gpu. You need to assign use_cpu if you want to train on CPU."),
)


@pytest.mark.parametrize("error", WITHOUT_DEVICE)
def test_e10_a_device_that_a_dry_run_hides_is_not_missing(error: Exception) -> None:
    known = explain_error(error, (WITHOUT_DEVICES,))

    assert known is WITHOUT_DEVICES
    assert explain_error(error) not in (None, known)


def test_e10_a_bus_error_is_known_by_its_signal() -> None:
    assert explain_death("SIGBUS", None, []) is BUS_ERROR
    died = death(
        rank=1, exit_code=None, signal_name="SIGBUS", peak_memory_bytes=0, oom_killed=False, last_lines=[], stack=""
    )
    assert "/dev/shm" in str(RunFailed([died], plan(2), ""))


def explained(rank: int = 1) -> RankFailure:
    return describe(RuntimeError(PARAMETERS), rank=rank)


def test_e10_the_explanation_follows_the_original_error() -> None:
    lines = str(RunFailed([explained()], plan(2), "")).splitlines()

    original = next(number for number, line in enumerate(lines) if line.startswith("RuntimeError: Expected to have"))
    assert [line.split(":")[0] for line in lines[-2:]] == ["What it means", "What to do"]
    assert original < len(lines) - 3
    assert lines[-3] == ""


def test_e10_the_same_cause_is_explained_once() -> None:
    failures = [explained(rank) for rank in range(4)]

    assert str(RunFailed(failures, plan(4), "")).count("What it means") == 1
    events: list[RunEvent] = [RunStarted(plan=plan(4)), *(RankFailed(rank=one.rank, failure=one) for one in failures)]
    view = RunText()
    view.add(events, advance_all(RunState(), events), 0.0)
    shown = view.rest(1.0)
    assert shown.count("took no part in this step's loss") == 1
    assert shown.index("RuntimeError: Expected") < shown.index("took no part")


def test_e10_a_long_traceback_leaves_room_for_the_explanation() -> None:
    failure = RankFailure(
        rank=0, kind="raised", traceback="\n".join(f"line {n}" for n in range(300)), explanation=explained().explanation
    )

    lines = str(RunFailed([failure], plan(1), "/l")).splitlines()

    assert len(lines) <= MAX_LINES
    assert lines[-1].startswith("What to do: ")


def test_e10_the_record_of_a_run_holds_the_explanation() -> None:
    line = event_line(RankFailed(rank=1, failure=explained()))

    assert b'"explanation":{"meaning":"Some parameters' in line


def test_e10_ranks_whose_sizes_differ_are_told_what_gloo_meant() -> None:
    launched = launch(faulty_code.broadcast_other_sizes, debug=False)

    text = str(launched.failure)
    assert "SIGABRT" in text
    assert "op.preamble.length <= op.nbytes" in text
    assert text.splitlines()[-1].startswith("What to do: Let every rank call the same operations")
    assert "Ranks called different operations" in launched.text


def test_e10_an_interface_that_is_not_there_is_explained() -> None:
    launched = launch(faulty_code.meet, env={"GLOO_SOCKET_IFNAME": "nosuch0"})

    text = str(launched.failure)
    assert "Unable to find address for: nosuch0" in text
    assert text.splitlines()[-2].startswith("What it means: gloo found no network interface of that name")
    assert (launched.run.log_dir / "rank_0.log").read_text().splitlines()[-2:] == text.splitlines()[-2:]
    assert os.environ.get("GLOO_SOCKET_IFNAME") != "nosuch0"
