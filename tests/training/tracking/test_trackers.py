"""Choosing, starting, feeding and finishing trackers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_nb import (
    LOGGER_TYPE_TO_CLASS,
    Accelerator,
    GeneralTracker,
    TrainingError,
    filter_trackers,
    get_available_trackers,
    on_main_process,
    register_tracker_class,
)
from accel_nb.protocol import sink
from accel_nb.protocol.events import MetricsLogged, RunEvent, SettingsLogged
from accel_nb.training.choices import LoggerType

from .stand_ins import install


class Kept(GeneralTracker):
    """Keeps what it is told, in order."""

    name = "kept"
    requires_logging_directory = False

    def __init__(self, run_name: str = "", **kwargs: object) -> None:
        super().__init__()
        self.run_name = run_name
        self.kwargs = kwargs
        self.told: list[object] = []

    @property
    def tracker(self) -> list[object]:
        return self.told

    def start(self) -> None:
        self.told.append("start")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.told.append(dict(values))
        values.clear()

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: object) -> None:
        self.told.append((dict(values), step, kwargs))
        values.clear()

    def finish(self) -> None:
        self.told.append("finish")


class Everywhere(Kept):
    name = "everywhere"
    main_process_only = False


class KeptInFiles(Kept):
    name = "kept_in_files"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str, **kwargs: object) -> None:
        super().__init__(run_name, **kwargs)
        self.logging_dir = logging_dir


@pytest.fixture(autouse=True)
def _registry_stays() -> Iterator[None]:
    before = dict(LOGGER_TYPE_TO_CLASS)
    yield
    LOGGER_TYPE_TO_CLASS.clear()
    LOGGER_TYPE_TO_CLASS.update(before)


def test_a_tracker_of_ones_own_is_told_everything_in_order() -> None:
    first, second = Kept(), Everywhere()
    accelerator = Accelerator(cpu=True, log_with=[first, second])
    config = {"lr": 0.1}

    accelerator.init_trackers("digits", config)
    accelerator.log({"loss": 1.0}, step=2, log_kwargs={"kept": {"commit": True}})
    accelerator.log({"loss": 2.0})
    accelerator.end_training()

    assert first.told == [
        "start", {"lr": 0.1}, ({"loss": 1.0}, 2, {"commit": True}), ({"loss": 2.0}, None, {}), "finish",
    ]  # fmt: skip
    assert second.told[1:3] == [{"lr": 0.1}, ({"loss": 1.0}, 2, {})], "a tracker cannot change another's values"
    assert config == {"lr": 0.1}
    assert accelerator.trackers == accelerator.log_with == [first, second]


def test_one_that_lacks_what_the_contract_asks_for_is_refused() -> None:
    class Empty(GeneralTracker):
        name = "empty"

    with pytest.raises(NotImplementedError, match=r"^Empty lacks requires_logging_directory, tracker: a tracker def"):
        Empty()


def test_getting_a_tracker_and_its_librarys_object() -> None:
    own = Kept()
    accelerator = Accelerator(cpu=True, log_with=own)
    assert type(accelerator.get_tracker("kept")) is GeneralTracker, "nothing was started: it does nothing"
    accelerator.init_trackers("digits")

    assert accelerator.get_tracker("kept") is own
    assert accelerator.get_tracker("kept", unwrap=True) is own.told
    with pytest.raises(ValueError, match=r"^'wandb' is not among the trackers of this Accelerator, which are 'kept'"):
        accelerator.get_tracker("wandb")


def test_our_own_object_before_the_start_is_refused(tmp_path: Path) -> None:
    tracker = LOGGER_TYPE_TO_CLASS["jsonl"]("digits", tmp_path)  # type: ignore[call-arg, arg-type]

    with pytest.raises(RuntimeError, match=r"^the tracker 'jsonl' was not started: call accelerator\.init_trackers"):
        _ = tracker.tracker


def test_without_trackers_everything_does_nothing() -> None:
    accelerator = Accelerator(cpu=True)

    accelerator.init_trackers("digits", {"lr": 1}, {"wandb": {"tags": []}})
    accelerator.log({"loss": 1.0})
    accelerator.end_training()

    assert accelerator.trackers == []


def _log_twice(accelerator: Accelerator) -> None:
    for _ in range(2):
        accelerator.log({"loss": 1.0})


def test_logging_before_init_trackers_is_told_once() -> None:
    accelerator = Accelerator(cpu=True, log_with=Kept())

    with pytest.warns(UserWarning, match=r"^accelerator\.log was called before accelerator\.init_trackers") as caught:
        _log_twice(accelerator)

    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_logging_after_the_end_is_told_once_and_not_recorded(tmp_path: Path) -> None:
    own = Kept()
    accelerator = Accelerator(cpu=True, log_with=[own, "jsonl"], project_dir=tmp_path)
    accelerator.init_trackers("digits")
    accelerator.end_training()

    with pytest.warns(UserWarning, match=r"^accelerator\.log was called after accelerator\.end_training") as caught:
        _log_twice(accelerator)

    assert len(caught) == 1
    assert own.told == ["start", "finish"]


class Unable(Kept):
    name = "unable"

    def start(self) -> None:
        raise OSError("no network")


def test_one_that_cannot_start_is_not_finished_and_others_are() -> None:
    first, unable, last = Kept(), Unable(), Everywhere()
    accelerator = Accelerator(cpu=True, log_with=[first, unable, last])

    with pytest.raises(OSError, match="no network"):
        accelerator.init_trackers("digits")
    accelerator.end_training()

    assert (first.told, unable.told, last.told) == (["start", "finish"], [], [])


def test_a_second_run_finishes_the_first_and_ending_twice_finishes_once() -> None:
    own = Kept()
    accelerator = Accelerator(cpu=True, log_with=own)

    accelerator.init_trackers("first")
    accelerator.init_trackers("second")
    accelerator.end_training()
    accelerator.end_training()

    assert own.told == ["start", "finish", "start", "finish"]


def test_all_are_finished_when_one_fails_to() -> None:
    class Broken(Kept):
        def finish(self) -> None:
            raise OSError("disk full")

    other = Kept()
    accelerator = Accelerator(cpu=True, log_with=[Broken(), other])
    accelerator.init_trackers("digits")

    with pytest.raises(OSError, match="disk full"):
        accelerator.end_training()
    assert other.told[-1] == "finish"


def test_options_for_what_is_no_tracker_are_refused_and_for_others_left() -> None:
    accelerator = Accelerator(cpu=True, log_with=Kept())

    with pytest.raises(
        ValueError, match=r"^init_kwargs names 'wandbb', which is no tracker; known are 'aim', .*'kept'"
    ):
        accelerator.init_trackers("digits", init_kwargs={"wandbb": {}})
    with pytest.raises(ValueError, match=r"^init_kwargs names 'kept', but log_with holds that tracker ready-made\.$"):
        accelerator.init_trackers("digits", init_kwargs={"kept": {}})
    accelerator.init_trackers("digits", init_kwargs={"wandb": {}})
    with pytest.raises(ValueError, match=r"^log_kwargs names 'other'"):
        accelerator.log({}, log_kwargs={"other": {}})


class TestRegistered:
    def test_it_is_known_by_name_and_made_with_the_projects(self) -> None:
        register_tracker_class(Kept)
        accelerator = Accelerator(cpu=True, log_with="kept")

        accelerator.init_trackers("digits", init_kwargs={"kept": {"tags": 1}})

        tracker = accelerator.get_tracker("kept")
        assert (tracker.run_name, tracker.kwargs) == ("digits", {"tags": 1})

    def test_one_that_writes_files_gets_the_folder_and_needs_it(self, tmp_path: Path) -> None:
        register_tracker_class(KeptInFiles)

        with pytest.raises(
            ValueError, match=r"^Logging with `kept_in_files` requires a `logging_dir`: give Accelerator"
        ):
            Accelerator(cpu=True, log_with="kept_in_files")
        accelerator = Accelerator(cpu=True, log_with="kept_in_files", project_dir=str(tmp_path))
        accelerator.init_trackers("digits")

        assert accelerator.trackers[0].logging_dir == str(tmp_path)  # type: ignore[attr-defined]

    def test_what_is_no_tracker_class_is_refused(self) -> None:
        class Nameless(GeneralTracker):
            requires_logging_directory = False

        class Undecided(GeneralTracker):
            name = "undecided"

        with pytest.raises(
            ValueError, match=r"^register_tracker_class needs a subclass of GeneralTracker, got <class 'd"
        ):
            register_tracker_class(dict)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"^Nameless must define a name"):
            register_tracker_class(Nameless)
        with pytest.raises(ValueError, match=r"^Undecided must define requires_logging_directory: True or False"):
            register_tracker_class(Undecided)

    def test_taking_over_a_name_is_told(self) -> None:
        class Mine(Kept):
            name = "wandb"

        with pytest.warns(UserWarning, match=r"^log_with='wandb' now means Mine instead of WandBTracker\.$"):
            register_tracker_class(Mine)
        assert filter_trackers("wandb") == ["wandb"], "what we would need for it is not needed by another class"


class TestChoice:
    def test_names_enums_and_trackers_each_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, "wandb")
        own = Kept()

        assert filter_trackers([own, "notebook", LoggerType.WANDB, "wandb", "notebook"]) == [own, "notebook", "wandb"]
        assert filter_trackers(None) == []
        assert filter_trackers("jsonl", "runs") == ["jsonl"]

    def test_all_are_those_that_can_work_here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, "wandb")

        with_folder = filter_trackers([Kept(), "all"], "runs")
        without = filter_trackers(LoggerType.ALL)

        assert {"wandb", "jsonl", "notebook"} <= set(with_folder[1:]) == set(get_available_trackers())
        assert "comet_ml" not in with_folder
        assert {"wandb", "notebook"} <= set(without)
        assert not {"jsonl", "tensorboard"} & set(without)

    @pytest.mark.parametrize(
        ("name", "package"),
        [("wandb", "wandb"), ("comet_ml", "comet-ml"), ("mlflow", "mlflow"), ("trackio", "trackio")],
    )
    def test_one_whose_package_is_missing_is_refused(self, name: str, package: str) -> None:
        message = f"^log_with='{name}' needs a package that is not installed: pip install {package}$"
        with pytest.raises(TrainingError, match=message):
            Accelerator(cpu=True, log_with=name)

    def test_unknown_ones_are_refused(self) -> None:
        with pytest.raises(
            ValueError, match=r"^Unsupported logging capability: 'csv'\. Choose between \['all', 'aim', "
        ):
            Accelerator(cpu=True, log_with="csv")
        with pytest.raises(ValueError, match=r"^Unsupported logging capability: 3\."):
            filter_trackers(3)  # type: ignore[arg-type]

    def test_a_class_is_refused_with_what_to_do(self) -> None:
        message = (
            r"^log_with holds the class Kept: give an object of it, or its name after register_tracker_class\(Kept"
        )
        with pytest.raises(ValueError, match=message):
            Accelerator(cpu=True, log_with=Kept)


class TestRanks:
    def test_only_the_main_process_is_told_unless_the_tracker_says_otherwise(
        self, run_ranks: Callable[..., list[Any]]
    ) -> None:
        def train() -> tuple[list[object], list[object], object, str]:
            kept, everywhere = Kept(), Everywhere()
            accelerator = Accelerator(log_with=[kept, everywhere])
            accelerator.init_trackers("digits", {"lr": 1})
            accelerator.log({"rank": accelerator.process_index})
            unwrapped = accelerator.get_tracker("kept", unwrap=True)
            unwrapped.append("by hand")
            accelerator.end_training()
            return (
                kept.told,
                everywhere.told,
                accelerator.get_tracker("everywhere", unwrap=True),
                type(unwrapped).__name__,
            )

        first, second = run_ranks(train, 2)

        assert first[0] == ["start", {"lr": 1}, ({"rank": 0}, None, {}), "by hand", "finish"]
        assert second[0] == []
        assert [told[1][2] for told in (first, second)] == [({"rank": 0}, None, {}), ({"rank": 1}, None, {})]
        assert (second[1], second[3]) == (second[2], "ElsewhereObject")

    def test_methods_called_on_a_tracker_itself_keep_to_the_main_process(
        self, run_ranks: Callable[..., list[Any]], tmp_path: Path
    ) -> None:
        def train() -> None:
            accelerator = Accelerator(log_with="jsonl", project_dir=str(tmp_path))
            accelerator.init_trackers("digits")
            accelerator.get_tracker("jsonl").log({"rank": accelerator.process_index})
            accelerator.get_tracker("jsonl").file.write("")
            accelerator.end_training()

        run_ranks(train, 2)

        (line,) = (tmp_path / "digits" / "metrics.jsonl").read_text().splitlines()
        assert '"rank": 0' in line

    def test_the_decorator_asks_when_it_is_called(self, run_ranks: Callable[..., list[Any]]) -> None:
        class Mine:
            main_process_only = True

            @on_main_process
            def who(self) -> str:
                return "main"

        def train() -> list[object]:
            Accelerator()
            mine, everywhere = Mine(), Mine()
            everywhere.main_process_only = False
            return [mine.who(), everywhere.who()]

        assert run_ranks(train, 2) == [["main", "main"], [None, "main"]]


class TestNotebook:
    @pytest.fixture
    def events(self) -> Iterator[list[RunEvent]]:
        emitted: list[RunEvent] = []
        sink.deliver_to(emitted.append)
        yield emitted
        sink.deliver_to(None)

    def test_values_become_events(self, events: list[RunEvent]) -> None:
        accelerator = Accelerator(cpu=True, log_with="notebook")
        accelerator.init_trackers("digits", {"lr": 0.1, "model": {"width": 8}})

        accelerator.log({"loss": torch.tensor(0.5), "parts": {"a": 1}, "note": "x", "bad": math.nan}, step=3)
        accelerator.end_training()

        assert events == [
            SettingsLogged(project="digits", settings={"lr": "0.1", "model/width": "8"}),
            MetricsLogged(values={"loss": 0.5, "parts/a": 1.0, "bad": None}, step=3, texts={"note": "x"}),
        ]

    def test_without_a_launch_it_says_that_nothing_is_shown(self) -> None:
        accelerator = Accelerator(cpu=True, log_with="notebook")

        with pytest.warns(
            UserWarning, match=r'^log_with="notebook" shows metrics in the cell of a notebook_launcher cal'
        ):
            accelerator.init_trackers("digits")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            accelerator.log({"loss": 1.0})
