from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from accel_nb.protocol import environment
from accel_nb.protocol.environment import RankEnvironment, foreign_launcher, read_rank
from accel_nb.protocol.plan import LaunchPlan, RankPlan

TWO_RANKS = LaunchPlan(
    run_id="r1",
    function_name="train",
    engine="local",
    device_kind="cpu",
    process_group="gloo",
    ranks=(RankPlan(rank=0, local_rank=0, cpu_threads=3), RankPlan(rank=1, local_rank=1, cpu_threads=3)),
    max_restarts=2,
    mixed_precision="bf16",
)


class TestRankVariables:
    def test_a_rank_gets_torchruns_contract(self) -> None:
        variables = environment.rank_variables(TWO_RANKS, TWO_RANKS.ranks[1], port=4242, attempt=1)

        assert variables == {
            "RANK": "1",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "default",
            "ROLE_RANK": "1",
            "ROLE_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "4242",
            "TORCHELASTIC_RUN_ID": "r1",
            "TORCHELASTIC_RESTART_COUNT": "1",
            "TORCHELASTIC_MAX_RESTARTS": "2",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "ACCELERATE_MIXED_PRECISION": "bf16",
            "ACCELERATE_USE_CPU": "true",
            "ACCEL_NB_DEVICE": "cpu",
            "OMP_NUM_THREADS": "3",
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
        }

    def test_on_cuda_the_cpu_is_not_asked_for(self) -> None:
        variables = environment.rank_variables(
            replace(TWO_RANKS, device_kind="cuda"), TWO_RANKS.ranks[0], port=1, attempt=0
        )

        assert variables["ACCELERATE_USE_CPU"] == "false"

    def test_what_is_not_the_contract_can_be_chosen_by_the_plan(self) -> None:
        chosen = {"OMP_NUM_THREADS": "5,2", "GLOO_SOCKET_IFNAME": "eth0", "ACCELERATE_DEBUG_MODE": "1", "RANK": "9"}
        plan = replace(TWO_RANKS, env=chosen)

        own = environment.rank_variables(plan, plan.ranks[0], port=1, attempt=0)

        assert own.keys() & chosen.keys() == {"RANK"}
        assert "NCCL_SOCKET_IFNAME" in own

    def test_every_variable_is_either_the_contract_or_respected(self) -> None:
        variables = environment.rank_variables(TWO_RANKS, TWO_RANKS.ranks[0], port=1, attempt=0)

        assert variables.keys() <= environment.RANK_CONTRACT_NAMES | set(environment.RESPECTED_NAMES)

    def test_a_rank_reads_back_who_it_is(self) -> None:
        variables = environment.rank_variables(TWO_RANKS, TWO_RANKS.ranks[1], port=1, attempt=0)

        assert read_rank(variables) == RankEnvironment(rank=1, local_rank=1, world_size=2, local_world_size=2)

    def test_ranks_of_another_node_are_not_local(self) -> None:
        ranks = (*TWO_RANKS.ranks, RankPlan(rank=2, local_rank=0, node=1))
        plan = replace(TWO_RANKS, ranks=ranks)

        variables = environment.rank_variables(plan, ranks[2], port=1, attempt=0)

        assert (variables["LOCAL_WORLD_SIZE"], variables["GROUP_RANK"], variables["WORLD_SIZE"]) == ("1", "1", "3")
        assert "GLOO_SOCKET_IFNAME" not in variables


class TestReadRank:
    @pytest.mark.parametrize(
        ("variables", "expected"),
        [
            (
                {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"},
                (3, 1, 4, 2, 1),
            ),
            ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 0, 1, 1, 0)),
            (
                {
                    "OMPI_COMM_WORLD_RANK": "3",
                    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                    "OMPI_COMM_WORLD_SIZE": "4",
                    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                    "OMPI_COMM_WORLD_NODE_RANK": "1",  # the rank within the node
                },
                (3, 1, 4, 2, 0),
            ),
            (
                {
                    "MV2_COMM_WORLD_RANK": "3", "MV2_COMM_WORLD_LOCAL_RANK": "1", "MV2_COMM_WORLD_SIZE": "4",
                    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
                },
                (3, 1, 4, 2, 0),
            ),
            ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, (1, 1, 2, 2, 0)),
            (
                {
                    "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0",
                    "SLURM_NTASKS_PER_NODE": "2", "SLURM_NODEID": "0",
                },
                (1, 1, 2, 2, 0),
            ),
        ],
    )  # fmt: skip
    def test_each_launcher_is_understood(
        self, variables: dict[str, str], expected: tuple[int, int, int, int, int]
    ) -> None:
        found = read_rank(variables)

        assert found is not None
        assert (found.rank, found.local_rank, found.world_size, found.local_world_size, found.node_rank) == expected

    @pytest.mark.parametrize(
        "variables",
        [
            {},
            {"RANK": "0"},
            {"WORLD_SIZE": "2"},
            {"RANK": "", "WORLD_SIZE": "2"},
            {"RANK": "x", "WORLD_SIZE": "2"},
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"},  # inside salloc, not started by srun
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"},
        ],
    )
    def test_a_process_that_no_launcher_started(self, variables: dict[str, str]) -> None:
        assert read_rank(variables) is None

    def test_the_first_complete_launcher_wins(self) -> None:
        found = read_rank({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "5", "SLURM_NTASKS": "8"})

        assert found is not None
        assert found.world_size == 2


class TestForeignLaunchers:
    @pytest.mark.parametrize(
        ("name", "launcher"),
        [
            ("RANK", "torchrun"),
            ("MASTER_PORT", "torchrun"),
            ("TORCHELASTIC_RUN_ID", "torchrun"),
            ("SLURM_PROCID", "SLURM"),
            ("SLURM_STEP_ID", "SLURM"),
            ("SLURM_NTASKS", "SLURM"),
            ("OMPI_COMM_WORLD_SIZE", "MPI"),
            ("PMI_RANK", "MPI"),
            ("PMIX_NAMESPACE", "MPI"),
            ("MPI_LOCALRANKID", "MPI"),
        ],
    )
    def test_variables_that_number_a_launchers_processes(self, name: str, launcher: str) -> None:
        assert foreign_launcher(name) == launcher
        assert environment.is_foreign_launcher_variable(name)

    @pytest.mark.parametrize(
        "name",
        ["HOME", "SLURM_JOB_ID", "SLURM_TMPDIR", "SLURM_CPUS_PER_TASK", "OMPI_MCA_btl", "I_MPI_ROOT",
         "HYDRA_FULL_ERROR", "RANKING", "CUDA_VISIBLE_DEVICES"],
    )  # fmt: skip
    def test_variables_that_describe_a_job_or_tune_a_library_stay(self, name: str) -> None:
        assert foreign_launcher(name) == ""
        assert not environment.is_foreign_launcher_variable(name)

    def test_launchers_variables_are_never_part_of_a_servers_key(self) -> None:
        assert not environment.is_server_key_variable("TORCHELASTIC_RUN_ID")
        assert environment.is_server_key_variable("TORCH_LOGS")
        assert environment.is_server_key_variable("OMP_NUM_THREADS")
        assert not environment.is_server_key_variable("HOME")


class TestWholeEnvironment:
    def test_the_plans_variables_lie_over_the_kernels_and_the_contract_over_both(self) -> None:
        plan = replace(TWO_RANKS, env={"A": "plan", "RANK": "7"}, env_removed=("SLURM_PROCID",))
        base = {b"A": b"kernel", b"B": b"kernel\xff", b"SLURM_PROCID": b"0", b"GLOO_SOCKET_IFNAME": b"eth1"}

        whole = environment.rank_environment(base, plan, {"RANK": "0", "GLOO_SOCKET_IFNAME": "lo"})

        assert whole == {"A": "plan", "B": "kernel\udcff", "RANK": "0", "GLOO_SOCKET_IFNAME": "eth1"}

    @pytest.mark.parametrize(
        ("kernels", "own", "ranks"),
        [
            ("module://matplotlib_inline.backend_inline", {}, environment.RANK_BACKEND),
            ("inline", {}, environment.RANK_BACKEND),
            ("agg", {}, "agg"),
            ("module://matplotlib_inline.backend_inline", {"MPLBACKEND": "pdf"}, "pdf"),
        ],
    )
    def test_u12_figures_of_ranks_need_no_notebooks_shell(self, kernels: str, own: dict[str, str], ranks: str) -> None:
        whole = environment.rank_environment({b"MPLBACKEND": kernels.encode()}, replace(TWO_RANKS, env=own), {})

        assert whole["MPLBACKEND"] == ranks

    def test_a_variable_that_is_no_utf8_comes_back_as_it_was(self) -> None:
        variables = {"A": "\udcff\udcfe", "\udcff": "ä"}

        sent = environment.to_bytes(variables)

        assert sent == {b"A": b"\xff\xfe", b"\xff": b"\xc3\xa4"}
        assert environment.from_bytes(sent) == variables

    def test_the_current_environment_is_a_copy(self) -> None:
        variables = environment.current()
        variables["ACCEL_NB_TEST_COPY"] = "1"

        assert "ACCEL_NB_TEST_COPY" not in os.environ

    def test_a_process_takes_over_a_whole_environment(self) -> None:
        code = (
            "import os\n"
            "from accel_nb.protocol import environment\n"
            "environment.replace_all({'ONLY': 'this'})\n"
            "assert dict(os.environ) == {'ONLY': 'this'}, os.environ\n"
            "assert os.popen('echo $ONLY').read() == 'this\\n'"
        )

        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestLogRoot:
    def test_a_relative_folder_is_made_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("ACCEL_NB_LOG_DIR", "mine/runs")

        assert environment.log_root() == tmp_path / "mine" / "runs"

    @pytest.mark.parametrize(
        ("state", "root"), [("/state", "/state"), ("", "/h/.local/state"), ("relative", "/h/.local/state")]
    )
    def test_without_a_choice_it_is_in_the_users_state_directory(
        self, state: str, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("ACCEL_NB_LOG_DIR")
        monkeypatch.setenv("HOME", "/h")
        monkeypatch.setenv("XDG_STATE_HOME", state)

        assert environment.log_root() == Path(root) / "accel_nb" / "runs"


@pytest.mark.parametrize(("text", "yes"), [("1", True), (" True ", True), ("on", True), ("0", False), ("", False)])
def test_yes_is_spelled_as_upstream_spells_it(text: str, yes: bool) -> None:
    assert environment.is_true(text) is yes


@pytest.mark.parametrize(("text", "value"), [("YES", 1), ("on", 1), ("False", 0), ("n", 0)])
def test_spellings_of_yes_and_no(text: str, value: int) -> None:
    assert environment.str_to_bool(text) == value
    assert environment.str_to_bool(text, to_bool=True) is bool(value)


def test_other_spellings_are_refused() -> None:
    with pytest.raises(ValueError, match="'maybe' is neither yes nor no; the spellings are 0, 1, f, false, n, no, off"):
        environment.str_to_bool("maybe")


def test_variables_are_read_as_what_they_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_FLAG", "yes")
    monkeypatch.setenv("A_NUMBER", "3")
    monkeypatch.delenv("NOT_SET", raising=False)

    assert environment.parse_flag_from_env("A_FLAG") is True
    assert environment.parse_flag_from_env("NOT_SET") is False
    assert environment.parse_flag_from_env("NOT_SET", default=True) is True
    assert environment.parse_choice_from_env("NOT_SET") == "no"
    assert environment.parse_choice_from_env("A_FLAG") == "yes"
    assert environment.get_int_from_env(["NOT_SET", "A_FLAG", "A_NUMBER"], 7) == 3
    assert environment.get_int_from_env(["NOT_SET"], 7) == 7
