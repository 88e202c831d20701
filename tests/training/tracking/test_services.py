"""Adapters of services: which functions of the library are called, and with what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_nb import Accelerator, GeneralTracker

from .stand_ins import Recorder, install

VALUES = {"loss": torch.tensor(0.5), "note": "warm-up", "parts": {"a": 1.0}}


def train(name: str, **init_kwargs: object) -> GeneralTracker:
    """A run of one process that logs to the tracker `name`; gives that."""
    accelerator = Accelerator(cpu=True, log_with=name, project_dir="runs")
    accelerator.init_trackers("digits", {"lr": 0.1}, {name: init_kwargs})
    accelerator.log(VALUES, step=3)
    tracker: GeneralTracker = accelerator.get_tracker(name)
    accelerator.end_training()
    return tracker


@pytest.mark.parametrize("name", ["wandb", "trackio", "swanlab"])
def test_services_with_one_run(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    calls = install(monkeypatch, name, "init", "config")

    tracker = train(name, tags=["a"])

    assert calls == [
        f"{name}.init(project='digits', tags=['a'])",
        f"{name}.config.update({{'lr': 0.1}}, allow_val_change=True)",
        f"{name}.init().log({{'loss': 0.5, 'note': 'warm-up', 'parts': {{'a': 1.0}}}}, step=3)",
        f"{name}.init().finish()",
    ]
    assert not tracker.main_process_only


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_images_of_services_with_one_run(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    calls = install(monkeypatch, name, "init", "config", "Image")
    tracker: Any = train(name)
    calls.clear()

    tracker.log_images({"digits": ["an image"]}, step=1)

    assert calls == [f"{name}.Image('an image')", f"{name}.init().log({{'digits': [<{name}.Image()>]}}, step=1)"]


def test_tables_of_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(monkeypatch, "wandb", "init", "config", "Table")
    tracker: Any = train("wandb")
    calls.clear()

    tracker.log_table("errors", columns=["a"], data=[[1]], step=2)

    assert calls == [
        "wandb.Table(columns=['a'], data=[[1]], dataframe=None)",
        "wandb.init().log({'errors': <wandb.Table()>}, step=2)",
    ]


def test_comet(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(monkeypatch, "comet_ml", "start", "Experiment")

    train("comet_ml", online=False)

    assert calls == [
        "comet_ml.start(project_name='digits', online=False)",
        "comet_ml.start().log_parameters({'lr': 0.1})",
        "comet_ml.start().set_step(3)",
        "comet_ml.start().log_metric('loss', 0.5, step=3)",
        "comet_ml.start().log_other('note', 'warm-up')",
        "comet_ml.start().log_metrics({'a': 1.0}, step=3)",
        "comet_ml.start().end()",
    ]


def test_comet_before_it_had_start(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(monkeypatch, "comet_ml", "Experiment")

    train("comet_ml")

    assert calls[0] == "comet_ml.Experiment(project_name='digits')"


def test_aim(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(monkeypatch, "aim", "Run", "Image")

    tracker: Any = train("aim")
    tracker.log_images({"a": ("image", "caption")}, 4, {"aim_image": {"quality": 9}, "track": {"context": "c"}})

    assert calls == [
        "aim.Run(repo='runs')",
        "aim.Run().name = 'digits'",
        "aim.Run()['hparams'] = {'lr': 0.1}",
        "aim.Run().track(0.5, name='loss', step=3)",
        "aim.Run().track('warm-up', name='note', step=3)",
        "aim.Run().track({'a': 1.0}, name='parts', step=3)",
        "aim.Run().close()",
        "aim.Image('image', caption='caption', quality=9)",
        "aim.Run().track(<aim.Image()>, name='a', step=4, context='c')",
    ]


def install_mlflow(monkeypatch: pytest.MonkeyPatch, found: list[object]) -> list[str]:
    functions = (
        "create_experiment", "start_run", "end_run", "log_params", "log_metrics", "log_figure", "log_artifact",
        "log_artifacts",
    )  # fmt: skip
    limits = SimpleNamespace(validation=SimpleNamespace(MAX_PARAM_VAL_LENGTH=20, MAX_PARAMS_TAGS_PER_BATCH=2))
    return install(monkeypatch, "mlflow", *functions, utils=limits, search_experiments=lambda **_: found)


@pytest.fixture
def _no_mlflow_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXPERIMENT_NAME", "RUN_ID", "TAGS", "NESTED_RUN"):
        monkeypatch.delenv(f"MLFLOW_{name}", raising=False)


@pytest.mark.usefixtures("_no_mlflow_variables")
def test_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install_mlflow(monkeypatch, [SimpleNamespace(experiment_id="7")])

    with pytest.warns(UserWarning, match=r"^mlflow cannot record '(note|parts)': its value is a (str|dict)\."):
        train("mlflow", run_name="first")

    assert calls == [
        "mlflow.start_run(run_id=None, experiment_id='7', run_name='first', nested=False, tags=None, description=None)",
        "mlflow.log_params({'lr': 0.1})",
        "mlflow.log_metrics({'loss': 0.5}, step=3)",
        "mlflow.end_run()",
    ]


@pytest.mark.usefixtures("_no_mlflow_variables")
def test_mlflow_makes_an_experiment_and_obeys_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install_mlflow(monkeypatch, [])
    for name, value in {"EXPERIMENT_NAME": "e", "RUN_ID": "r", "TAGS": '{"a": "b"}', "NESTED_RUN": "False"}.items():
        monkeypatch.setenv(f"MLFLOW_{name}", value)
    accelerator = Accelerator(cpu=True, log_with="mlflow")

    accelerator.init_trackers("digits", init_kwargs={"mlflow": {"nested_run": True}})

    assert calls[0] == "mlflow.create_experiment(name='e', artifact_location=None, tags={'a': 'b'})"
    assert calls[1].startswith(
        "mlflow.start_run(run_id='r', experiment_id=<mlflow.create_experiment()>, run_name=None, "
    )
    assert "nested=False, tags={'a': 'b'}" in calls[1]


@pytest.mark.usefixtures("_no_mlflow_variables")
def test_mlflow_settings_come_in_batches_without_those_that_are_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install_mlflow(monkeypatch, [SimpleNamespace(experiment_id="7")])
    accelerator = Accelerator(cpu=True, log_with="mlflow")
    config = {"a": 1, "b": 2, "long": "x" * 21, "c": 3}

    with pytest.warns(UserWarning, match=r"^mlflow \(at most 20 characters\) cannot record 'long'"):
        accelerator.init_trackers("digits", config)

    assert calls[1:] == ["mlflow.log_params({'a': 1, 'b': 2})", "mlflow.log_params({'c': 3})"]
    assert "long" in config, "the caller's settings are left alone"


@pytest.mark.usefixtures("_no_mlflow_variables")
def test_mlflow_figures_and_artifacts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install_mlflow(monkeypatch, [SimpleNamespace(experiment_id="7")])
    accelerator = Accelerator(cpu=True, log_with="mlflow")
    accelerator.init_trackers("digits")
    tracker = accelerator.get_tracker("mlflow")
    calls.clear()

    tracker.log_figure("f", "f.png", save_kwargs={})
    tracker.log_artifact("a.txt", "folder")
    tracker.log_artifacts("folder")

    assert calls == [
        "mlflow.log_figure(figure='f', artifact_file='f.png', save_kwargs={})",
        "mlflow.log_artifact(local_path='a.txt', artifact_path='folder')",
        "mlflow.log_artifacts(local_dir='folder', artifact_path=None)",
    ]


class Task:
    """ClearML's class: a task may run already."""

    running: Recorder | None = None
    calls: list[str]

    @classmethod
    def current_task(cls) -> Recorder | None:
        return cls.running

    @classmethod
    def init(cls, **kwargs: object) -> Recorder:
        return Recorder("Task.init", cls.calls)(**kwargs)


@pytest.fixture
def clearml(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for name in ("CLEARML_PROJECT", "CLEARML_TASK"):
        monkeypatch.delenv(name, raising=False)
    calls = install(monkeypatch, "clearml", Task=Task)
    monkeypatch.setattr(Task, "calls", calls, raising=False)
    monkeypatch.setattr(Task, "running", None)
    return calls


def test_clearml(clearml: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARML_TASK", "t")
    accelerator = Accelerator(cpu=True, log_with="clearml")
    accelerator.init_trackers("digits", {"lr": 0.1})

    accelerator.log({"eval_loss": 0.5, "lr": 1}, step=3)
    accelerator.log({"final": 2})
    with pytest.warns(UserWarning, match="^clearml cannot record 'remark'"):
        accelerator.log({"remark": "x"})
    accelerator.end_training()

    logger = "Task.init().get_logger()"
    assert [call for call in clearml if not call.endswith("get_logger()")] == [
        "Task.init(project_name='digits', task_name='t')",
        "Task.init().connect_configuration({'lr': 0.1})",
        f"{logger}.report_scalar(title='loss', series='eval', value=0.5, iteration=3)",
        f"{logger}.report_scalar(title='lr', series='train', value=1, iteration=3)",
        f"{logger}.report_single_value(name='final', value=2)",
        "Task.init().close()",
    ]


def test_clearml_leaves_a_task_open_that_was_running_before(
    clearml: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Task, "running", Recorder("mine", clearml))
    accelerator = Accelerator(cpu=True, log_with="clearml")

    accelerator.init_trackers("digits")
    accelerator.end_training()

    assert clearml == []


def test_clearml_tables_and_images(clearml: list[str]) -> None:
    accelerator = Accelerator(cpu=True, log_with="clearml")
    accelerator.init_trackers("digits")
    tracker = accelerator.get_tracker("clearml")
    clearml.clear()

    tracker.log_table("test_errors", columns=["a"], data=[[1]], step=2)
    tracker.log_table("errors", dataframe="frame")
    tracker.log_images({"digits": "image"}, step=1)
    with pytest.raises(ValueError, match=r"^ClearMLTracker\.log_table needs data= or dataframe=\.$"):
        tracker.log_table("errors")

    logger = "Task.init().get_logger()"
    assert [call for call in clearml if not call.endswith("get_logger()")] == [
        f"{logger}.report_table(title='errors', series='test', table_plot=[['a'], [1]], iteration=2)",
        f"{logger}.report_table(title='errors', series='train', table_plot='frame', iteration=None)",
        f"{logger}.report_image(title='digits', series='train', iteration=1, image='image')",
    ]


def test_dvclive(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(monkeypatch, "dvclive", "Live")
    install(monkeypatch, "dvclive.plots", Metric=SimpleNamespace(could_log=lambda value: not isinstance(value, dict)))

    with pytest.warns(UserWarning, match="^dvclive cannot record 'parts': its value is a dict"):
        train("dvclive", dir="d")

    assert calls == [
        "dvclive.Live(dir='d')",
        "dvclive.Live().log_params({'lr': 0.1})",
        "dvclive.Live().step = 3",
        "dvclive.Live().log_metric('loss', 0.5)",
        "dvclive.Live().log_metric('note', 'warm-up')",
        "dvclive.Live().next_step()",
        "dvclive.Live().end()",
    ]


def test_dvclive_with_a_live_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(monkeypatch, "dvclive", "Live")
    own = Recorder("own", calls)
    accelerator = Accelerator(cpu=True, log_with="dvclive")

    accelerator.init_trackers("digits", {"lr": 1}, {"dvclive": {"live": own}})

    assert calls == ["own.log_params({'lr': 1})"]
