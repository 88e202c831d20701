"""What a caller puts into `env` reaches the ranks and no file."""

from __future__ import annotations

import os
from pathlib import Path

from accel_nb.launch.run import Run
from accel_nb.launch.run_files import server_log
from accel_nb.launch.servers.warm_client import POOL

from .launching import launch, start
from .lifecycle_code import own_pid

TOKEN = "tok-5b1f0c7e"
ENV = {"MY_TOKEN": TOKEN}


def files_with_token(run: Run) -> list[str]:
    files = [*run.log_dir.iterdir(), server_log()]
    return [file.name for file in files if file.exists() and TOKEN.encode() in file.read_bytes()]


def record_of(run: Run) -> str:
    return Path(run.log_dir / "run.jsonl").read_text()


def test_the_record_of_a_run_names_variables_without_their_values() -> None:
    launched = launch(lambda: os.environ["MY_TOKEN"][:4], env=ENV)

    assert launched.values == ["tok-", "tok-"]
    assert files_with_token(launched.run) == []
    assert '"MY_TOKEN":"(not recorded)"' in record_of(launched.run)
    assert launched.run.plan.env["MY_TOKEN"] == TOKEN, "the plan itself is the caller's own"


def test_the_record_of_a_failure_does_not_hold_them_either() -> None:
    def fails() -> None:
        token = os.environ["MY_TOKEN"]
        raise ValueError(len(token))

    launched = launch(fails, env=ENV)

    assert "ValueError: 12" in str(launched.failure)
    assert files_with_token(launched.run) == []


def test_nor_that_of_a_run_which_never_began() -> None:
    POOL.stop_all(timeout_s=60.0)
    run = start(own_pid, env=ENV)
    run.stop(0.0)
    run.draw()

    assert run.status == "stopped"
    assert '"MY_TOKEN":"(not recorded)"' in record_of(run)
    assert files_with_token(run) == []
