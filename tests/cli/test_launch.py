"""``accel-nb launch``: real processes, from the shell's side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from accel_nb.cli.main import main
from tests.layering import PROJECT

pytestmark = pytest.mark.engines

Refused = Callable[[Sequence[str]], str]

TRAIN = """
import json, sys
import torch
from accel_nb import Accelerator

accelerator = Accelerator()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
samples = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(samples, batch_size=8))
losses = []
for batch, wanted in loader:
    loss = torch.nn.functional.mse_loss(model(batch), wanted)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(accelerator.reduce(loss.detach(), "mean").item())
if accelerator.is_main_process:
    with open(sys.argv[1], "w") as file:
        json.dump({"losses": losses, "ranks": accelerator.num_processes}, file)
"""
ON_TWO = ("launch", "--cpu", "--num-processes", "2")


def environment(**more: str) -> dict[str, str]:
    """Of the tests, with the package on the path, and no settings of whoever runs them."""
    return {**os.environ, "PYTHONPATH": str(PROJECT), "ACCEL_NB_CONFIG": os.devnull, "HF_HOME": os.devnull, **more}


def accel_nb(*words: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    variables = environment(**more)
    variables.pop("ACCEL_NB_CONFIG")
    variables["XDG_CONFIG_HOME"] = str(cwd / "settings")
    return subprocess.run(
        [sys.executable, "-m", "accel_nb.cli", *words],
        cwd=cwd, env=variables, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip


def script(folder: Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(text)
    return name


def rank_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the ranks wrote, without our own words."""
    return [line for line in done.stdout.splitlines() if not line.startswith("accel_nb: ")]


@pytest.mark.timeout(240)  # two launches, of which one is not ours
def test_a_script_has_the_same_losses_as_under_torchrun(tmp_path: Path) -> None:
    name = script(tmp_path, TRAIN)

    ours = accel_nb(*ON_TWO, name, "ours.json", cwd=tmp_path)
    torchrun = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", name, "theirs.json"],
        cwd=tmp_path, env=environment(ACCELERATE_USE_CPU="true"), capture_output=True, text=True, timeout=110,
        check=False,
    )  # fmt: skip

    assert ours.returncode == 0, ours.stderr
    assert torchrun.returncode == 0, torchrun.stderr
    results = [json.loads((tmp_path / file).read_text()) for file in ("ours.json", "theirs.json")]
    assert results[0] == results[1]
    assert results[0]["ranks"] == 2
    assert len(results[0]["losses"]) == 4


def test_a_script_runs_as_main_with_its_own_arguments_under_torchruns_variables(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'imported'\n")
    name = script(
        tmp_path,
        "import os, sys, beside, pickle\n"
        "class Mine: pass\n"
        "assert isinstance(pickle.loads(pickle.dumps(Mine())), Mine)\n"
        "assert os.path.isabs(__file__)\n"
        "names = ['RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'TORCHELASTIC_RESTART_COUNT']\n"
        "assert os.environ['MASTER_ADDR'] and int(os.environ['MASTER_PORT'])\n"
        "print(__name__, beside.WORD, sys.argv, [os.environ[name] for name in names])\n",
    )

    done = accel_nb(*ON_TWO, name, "--num-processes", "7", "-x", cwd=tmp_path)

    argv = ["train.py", "--num-processes", "7", "-x"]
    assert sorted(rank_lines(done)) == [
        f"[r{rank}] __main__ imported {argv} {[str(rank), str(rank), '2', '2', '0']}" for rank in range(2)
    ]
    assert done.returncode == 0, done.stderr


def test_a_module_runs_as_python_m_does(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "mine" / "run.py").write_text("import sys\nprint(__name__, __package__, sys.argv[1:])\n")

    done = accel_nb("launch", "--cpu", "-m", "mine.run", "--lr", "3", cwd=tmp_path)

    assert rank_lines(done) == ["__main__ mine ['--lr', '3']"]
    assert done.returncode == 0, done.stderr


def notebook(folder: Path, *cells: str) -> str:
    found = [{"cell_type": "markdown", "metadata": {}, "source": ["# text"]}]
    found += [
        {"cell_type": "code", "metadata": {}, "source": cell, "outputs": [], "execution_count": None}  # type: ignore[dict-item]
        for cell in cells
    ]
    (folder / "train.ipynb").write_text(
        json.dumps({"cells": found, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8"
    )
    return "train.ipynb"


def test_a_notebook_runs_from_top_to_bottom_and_its_failure_names_cell_and_line(tmp_path: Path) -> None:
    name = notebook(
        tmp_path,
        "%load_ext accel_nb\nimport os\ntext = '''\n%not a magic\n'''",
        "%%accelerate --num-processes 8\nprint(text.strip(), os.environ['WORLD_SIZE'])",
        "if os.environ['RANK'] == '1':\n    raise ValueError('of rank 1')",
    )

    done = accel_nb(*ON_TWO, name, cwd=tmp_path)

    assert [line.partition("] ")[2] for line in rank_lines(done)] in (["%not a magic 2"], ["%not a magic 2"] * 2)
    assert "train.ipynb cell 4, line 2" in done.stderr
    assert "raise ValueError('of rank 1')" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ("import sys; sys.exit(3)", 3, "with exit status 3"),
        ("raise KeyError('lost')", 1, "KeyError: 'lost'"),
        pytest.param("import os; os.kill(os.getpid(), 9)", 137, "killed by SIGKILL", marks=pytest.mark.faults),
    ],
)
def test_the_exit_status_is_that_of_the_rank_that_failed(tmp_path: Path, body: str, status: int, told: str) -> None:
    done = accel_nb("launch", "--cpu", script(tmp_path, body), cwd=tmp_path)

    assert told in done.stderr
    assert done.returncode == status


def test_a_dry_run_that_finds_something_wrong_ends_with_1(tmp_path: Path) -> None:
    done = accel_nb("launch", "--cpu", "--dry-run", script(tmp_path, "print('no step')"), cwd=tmp_path)

    assert "DryRun of train.py for 1 rank: 1 problem" in done.stdout
    assert done.returncode == 1, done.stderr


@pytest.mark.faults
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_ending_signal_ends_every_rank_and_what_it_started(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    name = script(
        tmp_path,
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('PIDS', os.getpid(), child.pid, flush=True)\n"
        "time.sleep(600)\n",
    )
    with subprocess.Popen(
        # A shell that has no terminal lets what it starts in the background ignore SIGINT, and that is inherited.
        ["env", "--default-signal=INT", sys.executable, "-m", "accel_nb.cli", *ON_TWO, "--no-config", name],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as launched:  # fmt: skip
        assert launched.stdout is not None
        pids: list[int] = []
        while len(pids) < 4:
            pids += map(int, launched.stdout.readline().partition("PIDS ")[2].split())
        launched.send_signal(number)
        try:
            _, told = launched.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            launched.kill()
            raise

    assert launched.returncode == status
    assert "train.py was interrupted after" in told
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_the_output_and_the_recording_go_where_log_dir_says(tmp_path: Path) -> None:
    done = accel_nb("launch", "--cpu", "--log-dir", "here", script(tmp_path, "print('hello')"), cwd=tmp_path)

    (folder,) = (tmp_path / "here").glob("run-*")
    assert (folder / "rank_0.log").read_text() == "hello\n"
    shown = accel_nb("replay", str(folder), cwd=tmp_path)
    assert shown.stdout == done.stdout
    assert "hello\n" in shown.stdout


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """The one line in which a command line is refused, with exit status 2."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCEL_NB_CONFIG", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))

    def refuse(words: Sequence[str]) -> str:
        try:
            status: object = main(words)
        except SystemExit as stop:
            status = stop.code
        out, told = capsys.readouterr()
        assert (status, out) == (2, "")
        (line,) = told.splitlines()
        return line

    return refuse


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "accel-nb launch: the following arguments are required: SCRIPT. accel-nb launch --help tells"),
        (["nothere.py"], "nothere.py: there is no such script in"),
        (["-m", "no.such.module"], "-m no.such.module: no module of this name is installed here"),
        (["--num-procs", "2", "t.py"], "'--num-procs' is no option; nearest: --num-processes"),
        (["--num-processes", "0", "t.py"], "num_processes=0: give a whole number of at least 1"),
        (["--use_fsdp", "t.py"], "--use-fsdp: sharded models (FSDP) are not part of this version. Leave it out."),
        (["--zero_stage", "3", "t.py"], "--zero-stage: DeepSpeed is not part of this version"),
        (["--cpu", "--multi-gpu", "t.py"], "--cpu and --multi-gpu contradict each other"),
        (["--gpu-ids", "0", "--devices", "1", "t.py"], "--gpu-ids and --devices say the same"),
        (["--num_machines", "2", "t.py"], "num_nodes=2 needs num_processes, the number of ranks on each machine"),
        (["--config-file", "lost.yaml", "t.py"], "lost.yaml: there is no such configuration file"),
        (["bad.ipynb"], "bad.ipynb cannot be read as a notebook of format 4"),
    ],
)
def test_what_cannot_be_launched_is_refused_in_one_line(
    tmp_path: Path, refused: Refused, words: list[str], told: str
) -> None:
    script(tmp_path, "", "t.py")
    script(tmp_path, "no json", "bad.ipynb")

    assert told in refused(["launch", *words])


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("x = 1\n!ls", "train.ipynb cell 2, line 2: '!ls' is for IPython"),
        ("%time f()", "train.ipynb cell 2, line 1: '%time f()' is for IPython"),
        ("x = (", "train.ipynb cell 2, line 1: '(' was never closed"),
    ],
)
def test_a_cell_that_is_not_plain_python_is_refused_by_line(
    tmp_path: Path, refused: Refused, cell: str, told: str
) -> None:
    assert told in refused(["launch", notebook(tmp_path, cell)])
