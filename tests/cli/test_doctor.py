"""The doctor's colours, on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from accel_nb.cli.doctor import _draw
from accel_nb.cli.main import main
from accel_nb.protocol.diagnosis import Diagnosis, Fact, Finding


def test_a_terminal_shows_the_same_words() -> None:
    finding = Finding(severity="problem", what="[bold] is no markup", why="a reason", remedy="a remedy")
    found = Diagnosis(facts=(Fact(group="software", name="Python", value="3.11 [x]"),), findings=(finding,))
    file = io.StringIO()

    _draw(found, Console(file=file, force_terminal=True, width=80))

    text = file.getvalue()
    assert "\x1b[1;31m" in text
    for words in ("3.11 [x]", "1 problem", ": [bold] is no markup", "a reason", "a remedy"):
        assert words in text


@pytest.mark.parametrize(
    "words", [["--device", "cpu"], ["--devices", "0"], ["--num-processes", "2"]], ids=lambda words: words[0]
)
def test_ranks_of_a_self_test_that_is_not_wanted_are_refused(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["doctor", "--no-self-test", *words]) == 2
    assert f"{words[0]} chooses ranks of the self-test, and --no-self-test starts none" in capsys.readouterr().err


def test_a_list_of_devices_with_a_hole_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", "--devices", "0,,1"])

    assert "'0,,1' has an empty entry; write positions or ids, as in 3,1" in capsys.readouterr().err
