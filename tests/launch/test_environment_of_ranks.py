"""Where a rank wakes up: variables that took effect, thread pools, folder, paths, locale, random state, modules."""

from __future__ import annotations

import locale
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel_nb.errors import InvalidArgument, PlanError

from . import rank_code
from .launching import launch, on_ranks, start


def test_modules_beside_the_notebook_hide_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("random", "socket", "signal", "torch", "queue"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')\n")
    monkeypatch.chdir(tmp_path)

    assert on_ranks(rank_code.gloo_sum, env={"PYTHONOPTIMIZE": "2"}) == [("gloo", 2, 3.0)] * 2


def test_another_value_of_such_a_variable_takes_effect_in_the_next_launch() -> None:
    def told() -> tuple[int, str]:
        import torch

        return sys.flags.optimize, torch.distributed.get_debug_level().name  # type: ignore[attr-defined]  # public, not in __all__

    assert on_ranks(told, env={"PYTHONOPTIMIZE": "2"}) == [(2, "OFF")] * 2
    assert on_ranks(told, env={"TORCH_DISTRIBUTED_DEBUG": "INFO"}) == [(0, "INFO")] * 2
    assert on_ranks(told) == [(0, "OFF")] * 2


ONE_OF_EACH_KIND = {
    "TORCH_LOGS": "+dynamo",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_COMPILE_DISABLE": "1",
    "PYTORCH_JIT": "0",
    "TRITON_CACHE_DIR": "/somewhere/triton",
    "OMP_NUM_THREADS": "3",
    "OMP_SCHEDULE": "dynamic,7",
    "MKL_DYNAMIC": "FALSE",
    "OPENBLAS_CORETYPE": "Haswell",
    "KMP_BLOCKTIME": "17",
    "GOMP_SPINCOUNT": "1234",
    "LD_LIBRARY_PATH": "",
    "MALLOC_ARENA_MAX": "1",
    "PYTHONWARNINGS": "ignore::UnicodeWarning",
    "PYTHONOPTIMIZE": "1",
    "PYTHONHASHSEED": "42",
}
"""Read once, when the interpreter or a library loads."""


def test_each_kind_of_variable_that_is_read_at_load_took_effect(tmp_path: Path) -> None:
    (tmp_path / "libfound_by_path.so.1").write_bytes(Path(rank_code.a_small_shared_library()).read_bytes())
    variables = {**ONE_OF_EACH_KIND, "LD_LIBRARY_PATH": str(tmp_path)}

    for effects in on_ranks(rank_code.effects_of_variables, env=variables):
        assert {name: effects["in the environment"].get(name) for name in variables} == variables
        at_load = effects["at load"]
        assert {name: at_load.get(name) for name in variables if name != "OMP_NUM_THREADS"} == {
            name: value for name, value in variables.items() if name != "OMP_NUM_THREADS"
        }
        assert effects["dynamo logs"] == "DEBUG"
        assert effects["distributed debug"] == "DETAIL"
        assert effects["dynamo disabled"] is True
        assert effects["jit"] is False
        assert effects["torch threads"] == 3
        assert effects["openmp schedule"] == (2, 7), "dynamic, chunks of 7"
        assert effects["openblas"] == {"Haswell"}
        assert effects["library found"] is True
        assert effects["malloc arenas"] == 1
        assert effects["warning filter"] is True
        assert effects["optimize"] == 1
        assert effects["hash"] == rank_code.hash_with_seed_42()


class TestThreadPools:
    def test_every_pool_has_the_threads_of_the_plan(self) -> None:
        launched = launch(rank_code.sizes_of_thread_pools, num_processes=1)

        (planned,) = {rank.cpu_threads for rank in launched.run.plan.ranks}
        for sizes in launched.values:
            assert set(sizes) >= {"torch", "openblas", "openmp"}, sizes
            assert {name: set(found) for name, found in sizes.items()} == {key: {planned} for key in sizes}

    @pytest.mark.parametrize("place", ["env", "kernel"])
    def test_omp_num_threads_of_the_users_own_wins(self, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        options: dict[str, Any] = {"env": {"OMP_NUM_THREADS": "3"}}
        if place == "kernel":
            monkeypatch.setenv("OMP_NUM_THREADS", "3")
            options = {}

        for sizes in on_ranks(rank_code.sizes_of_thread_pools, **options):
            assert {name: set(found) for name, found in sizes.items()} == {key: {3} for key in sizes}

    def test_every_copy_of_an_openmp_runtime_that_was_loaded_before_the_fork_is_resized(self, tmp_path: Path) -> None:
        for name in ("libgomp-0123abc.so.1.0.0", "libiomp5.so", "libgomp-not-called.txt"):
            shutil.copy(rank_code.path_of_libgomp(), tmp_path / name)
        code = (
            "import ctypes, sys\n"
            "from accel_nb.launch.rank.surroundings import set_thread_pools\n"
            "copies = [ctypes.CDLL(path) for path in sys.argv[1:]]\n"
            "set_thread_pools(3)\n"
            "print([copy.omp_get_max_threads() for copy in copies], 'torch' in sys.modules)\n"
        )
        command = [sys.executable, "-c", code, *map(str, sorted(tmp_path.iterdir()))]

        done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, check=True)

        assert done.stdout.decode() == "[3, 1, 3] False\n"

    def test_openblas_really_computes_with_that_many(self) -> None:
        assert on_ranks(rank_code.threads_that_multiply, env={"OMP_NUM_THREADS": "3"}) == [3, 3]


class TestSurroundings:
    @pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
    @pytest.mark.parametrize("start_method", ["forkserver", "spawn", "fork"])
    def test_folder_paths_arguments_umask_and_locale_are_the_kernels(
        self, start_method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path / "mine")
        monkeypatch.setattr(sys, "argv", ["notebook", "--flag"])
        mask = os.umask(0o027)
        before = locale.setlocale(locale.LC_ALL)
        locale.setlocale(locale.LC_ALL, "C.UTF-8")
        try:
            found = on_ranks(rank_code.surroundings, start_method=start_method)
        finally:
            locale.setlocale(locale.LC_ALL, before)
            os.umask(mask)

        for here in found:
            assert {name: here[name] for name in ("cwd", "sys.path", "argv", "umask", "locale", "stdin", "main")} == {
                "cwd": str(tmp_path),
                "sys.path": sys.path,
                "argv": ["notebook", "--flag"],
                "umask": 0o027,
                "locale": "C.UTF-8",
                "stdin": "",
                "main": ["__main__"],
            }

    @pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
    @pytest.mark.parametrize("start_method", ["forkserver", "spawn", "fork"])
    def test_names_that_are_no_utf8_reach_the_ranks(
        self, start_method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "caf\udce9"
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(sys, "argv", ["notebook", "\udce9", "\ud800"])
        monkeypatch.setenv("MINE", "\udce9")

        for here in on_ranks(rank_code.surroundings, start_method=start_method):
            assert (here["cwd"], here["sys.path"]) == (str(folder), sys.path)
            assert here["argv"] == ["notebook", "\udce9", r"\ud800"]
            assert here["mine"] == "\udce9"

    def test_what_is_no_text_in_the_import_path_or_the_arguments_stops_no_launch(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "path", [*sys.path, tmp_path, b"bytes", 5])
        monkeypatch.setattr(sys, "argv", ["notebook", 7, tmp_path])

        for here in on_ranks(rank_code.surroundings):
            assert here["sys.path"] == [*sys.path[:-3], str(tmp_path)]
            assert here["argv"] == ["notebook", "7", str(tmp_path)]

    @pytest.mark.parametrize("place", ["env", "kernel"])
    def test_time_zone_and_temporary_folder_take_effect(
        self, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        variables = {"TZ": "Mine-7:30", "TMPDIR": str(tmp_path)}
        options: dict[str, Any] = {"env": variables}
        if place == "kernel":
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            options = {}

        for here in on_ranks(rank_code.surroundings, **options):
            assert (here["time zone"], here["temporary folder"]) == (("Mine", 7.5), str(tmp_path))

    def test_a_folder_that_is_gone_is_named_before_anything_starts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()

        with pytest.raises(PlanError, match="working directory has been deleted"):
            start(rank_code.surroundings)


POLLUTED = {
    "RANK": "5", "LOCAL_RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "10.1.2.3",
    "MASTER_PORT": "1", "GROUP_RANK": "2", "TORCHELASTIC_RUN_ID": "theirs", "TORCHELASTIC_USE_AGENT_STORE": "True",
    "SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "77",
    "OMPI_COMM_WORLD_RANK": "6", "OMPI_COMM_WORLD_SIZE": "7", "PMI_RANK": "1", "PMI_SIZE": "9",
    "ACCELERATE_MIXED_PRECISION": "fp16", "ACCELERATE_USE_CPU": "no",
}  # fmt: skip
"""What a kernel has that torchrun, srun or mpirun started."""


class TestVariables:
    def test_another_launchers_variables_do_not_reach_the_ranks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in POLLUTED.items():
            monkeypatch.setenv(name, value)

        launched = launch(rank_code.who_the_frameworks_think_i_am)

        for rank, (variables, upstream, ours, total) in enumerate(launched.values):
            assert upstream == ours == (rank, 2, rank)
            assert total == 3.0
            assert variables["RANK"] == variables["LOCAL_RANK"] == str(rank)
            assert variables["WORLD_SIZE"] == variables["LOCAL_WORLD_SIZE"] == "2"
            assert variables["MASTER_ADDR"] == "127.0.0.1"
            assert (variables["ACCELERATE_MIXED_PRECISION"], variables["ACCELERATE_USE_CPU"]) == ("no", "true")
            assert variables["SLURM_JOB_ID"] == "77"
            gone = [
                name for name in variables if name.startswith(("SLURM_", "OMPI_", "PMI_")) and name != "SLURM_JOB_ID"
            ]
            assert gone == []
        assert "Hidden from the ranks: " in launched.text
        assert "SLURM uses such variables to number its own processes." in launched.text

    def test_the_kernels_own_variables_are_never_changed(self) -> None:
        before = dict(os.environ)

        on_ranks(rank_code.gloo_sum, env={"MINE": "1"})

        assert dict(os.environ) == before

    def test_the_whole_contract_of_torchrun_is_there(self) -> None:
        launched = launch(rank_code.contract, max_restarts=2)

        for rank, variables in enumerate(launched.values):
            assert variables == {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": "2",
                "ROLE_NAME": "default", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": variables["MASTER_PORT"],
                "TORCHELASTIC_RUN_ID": launched.run.plan.run_id, "TORCHELASTIC_RESTART_COUNT": "0",
                "TORCHELASTIC_MAX_RESTARTS": "2", "TORCHELASTIC_USE_AGENT_STORE": "True",
                "ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "true", "ACCEL_NB_DEVICE": "cpu",
            }  # fmt: skip

    def test_variables_that_are_the_launchers_are_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="env: MASTER_PORT cannot be set"):
            start(rank_code.place, env={"MASTER_PORT": "1234"})

    def test_what_the_kernel_unset_is_unset(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MINE", "1")
        assert on_ranks(lambda: os.environ.get("MINE")) == ["1", "1"]
        monkeypatch.delenv("MINE")
        assert on_ranks(lambda: os.environ.get("MINE")) == [None, None]


class TestRandomness:
    @pytest.fixture(autouse=True)
    def _seeded_kernel(self) -> Iterator[None]:
        state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002  the global one is the point
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        yield
        random.setstate(state)
        np.random.set_state(numpy_state)  # noqa: NPY002

    def test_ranks_draw_different_numbers_as_fresh_interpreters_do(self) -> None:
        draws = on_ranks(rank_code.draws, num_processes=3) + on_ranks(rank_code.draws, num_processes=3)

        for kind in ("random", "numpy", "uuid", "secrets"):
            assert len({draw[kind] for draw in draws}) == 6, kind


@pytest.mark.parametrize(("folder_name", "shown"), [("mine", "mine"), ("caf\udce9", r"caf\udce9")])
def test_a_local_module_edited_after_its_import_is_fresh_in_the_ranks_and_the_user_is_told(
    folder_name: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / folder_name
    folder.mkdir()
    file = folder / "edited_later.py"
    file.write_text("VALUE = 1\n\ndef f():\n    return VALUE\n")
    monkeypatch.syspath_prepend(folder)
    import edited_later  # type: ignore[import-not-found]

    assert launch(edited_later.f).text.count("edited_later") == 0
    file.write_text("VALUE = 22\n\ndef f():\n    return VALUE\n")
    launched = launch(edited_later.f)
    del sys.modules["edited_later"]

    assert launched.values == [22, 22]
    assert (
        "accel_nb: Module 'edited_later' has changed on disk since the kernel imported it (VALUE is 22, in the kernel "
        f"1): the ranks use {tmp_path / shown / 'edited_later.py'} as it is now."
    ) in launched.text
