"""``display`` in a rank: what is sent, how much of it, and what is refused."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator

import pytest

from accel_nb.launch.rank import displays
from accel_nb.launch.rank.displays import MAX_DISPLAYS, DisplayHandle, display
from accel_nb.protocol import sink
from accel_nb.protocol.events import Display, RunEvent


@pytest.fixture
def sent() -> Iterator[list[Display]]:
    """What this process, as rank 0, has displayed."""
    found: list[Display] = []

    def take(event: RunEvent) -> None:
        assert isinstance(event, Display)
        found.append(event)

    sink.deliver_to(take)
    displays.show_here(wanted=True)
    yield found
    displays.show_here(wanted=True)
    sink.deliver_to(None)


def texts(sent: list[Display]) -> list[str]:
    return [event.data["text/plain"] for event in sent]


def test_each_value_is_a_display(sent: list[Display]) -> None:
    assert display(1, "two") is None

    assert texts(sent) == ["1", "'two'"]
    assert len({event.display_id for event in sent}) == 2 or sent[0].display_id == sent[1].display_id


def test_u12_a_rank_that_is_not_shown_sends_text_only(sent: list[Display]) -> None:
    displays.show_here(wanted=False)

    display({"text/html": "<b>x</b>", "text/plain": "x"}, raw=True)

    assert [event.data for event in sent] == [{"text/plain": "x"}]


def test_a_handle_updates_what_it_has_shown(sent: list[Display]) -> None:
    handle = display("first", display_id=True)
    assert isinstance(handle, DisplayHandle)

    displays._DISPLAYS.sent_s.clear()  # as if it were long ago
    handle.update("second")

    assert [(event.update, event.display_id) for event in sent] == [
        (False, handle.display_id),
        (True, handle.display_id),
    ]


def test_o13_updates_in_quick_succession_are_the_last_one(sent: list[Display]) -> None:
    handle = display(0, display_id="counter")
    assert handle is not None

    for number in range(1, 500):
        handle.update(number)
    displays.finish()

    assert texts(sent)[0] == "0"
    assert texts(sent)[-1] == "499"
    assert len(sent) < 50


def test_o13_after_a_thousand_displays_the_rest_is_text(
    sent: list[Display], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(MAX_DISPLAYS + 2):
        display(number)

    assert len(sent) == MAX_DISPLAYS
    printed = capsys.readouterr()
    assert printed.out == "1000\n1001\n"
    assert printed.err == "accel_nb: displays after the first 1,000 are shown as text\n"


def test_an_object_may_show_itself(sent: list[Display]) -> None:
    class Own:
        def _ipython_display_(self) -> None:
            display("by itself")

    display(Own())

    assert texts(sent) == ["'by itself'"]


def test_include_and_exclude_choose_among_the_kinds(sent: list[Display]) -> None:
    data = {"text/plain": "x", "text/html": "<b>x</b>", "text/latex": "$x$"}

    display(data, raw=True, include=["text/latex"])
    display(data, raw=True, exclude=["text/html"])

    assert [set(event.data) for event in sent] == [{"text/plain", "text/latex"}] * 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"clear": True}, ValueError, r"display\(clear=\.\.\.\) is not possible in a rank"),
        ({"transient": {"a": 1}}, ValueError, r"display\(transient=\.\.\.\) is not possible in a rank"),
        ({"update": True}, TypeError, r"display\(update=True\) needs the display_id"),
        ({"raw": True}, TypeError, r"display\(raw=True\) takes a dict of MIME types, not int"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    sent: list[Display], arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        display(1, **arguments)  # type: ignore[arg-type]

    assert sent == []


def test_one_id_cannot_name_two_displays(sent: list[Display]) -> None:
    with pytest.raises(TypeError, match="display_id='x' names one display, and 2 objects were given"):
        display(1, 2, display_id="x")

    assert sent == []


def test_clear_output_says_that_it_clears_nothing(sent: list[Display], capsys: pytest.CaptureFixture[str]) -> None:
    displays.clear_output()
    displays.clear_output(wait=True)

    assert capsys.readouterr().out.count("clears nothing in a rank") == 1
    assert sent == []


def test_ipythons_functions_are_replaced_where_they_are_imported_already(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython.core.display_functions as theirs
    import IPython.display as shown

    for module in (theirs, shown):
        for name in ("display", "update_display", "publish_display_data", "clear_output"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(builtins, "display", None, raising=False)

    displays.install(0)

    assert theirs.display is shown.display is builtins.display is display  # type: ignore[attr-defined]
