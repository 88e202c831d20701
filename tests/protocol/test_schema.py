"""The schema and the recorded runs that the page's TypeScript is made and tested with are those of the Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accel_nb.protocol import schema
from accel_nb.protocol.events import Event
from accel_nb.protocol.run_state import RunState
from tests.fixtures import recorded
from tests.fixtures.every_kind import EVERY_KIND


def test_the_written_schema_is_current() -> None:
    stale = "stale: run `python -m accel_nb.protocol.schema` and `npm run schema`"

    assert _comparable(json.loads(schema.FILE.read_text())) == _comparable(json.loads(schema.schema_text())), stale


def _comparable(value: Any) -> Any:  # noqa: ANN401  JSON
    """With the alternatives of each union in one order: that differs between versions of msgspec."""
    if isinstance(value, list):
        return [_comparable(part) for part in value]
    if isinstance(value, dict):
        compared = {name: _comparable(part) for name, part in value.items()}
        return {**compared, "anyOf": sorted(compared["anyOf"], key=json.dumps)} if "anyOf" in compared else compared
    return value


def test_what_is_always_written_is_required_and_what_events_leave_out_is_not() -> None:
    definitions: dict[str, Any] = schema.schema()["$defs"]

    assert definitions["RunState"]["required"] == list(RunState.__struct_fields__)
    assert set(definitions["ProgressRow"]["required"]) == {"type", "bar", "text"}
    sparse = {kind.__name__ for kind in Event.__subclasses__()}
    assert all(definition["required"] for name, definition in definitions.items() if name not in sparse)


def test_main_writes_the_file_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "schema.json"
    monkeypatch.setattr("sys.argv", ["schema", str(file)])

    schema.main()

    assert json.loads(file.read_text())["title"] == "Protocol"


@pytest.mark.parametrize("name", recorded.names())
def test_the_states_of_recorded_runs_are_current(name: str) -> None:
    stale = "stale: run `python -m tests.fixtures.recorded`"

    assert recorded.state_file(name).read_text() == recorded.state_text(name), stale


def test_there_is_a_run_with_every_kind_of_event() -> None:
    kinds = {type(event) for event in EVERY_KIND}

    assert kinds == set(Event.__subclasses__()), "add one of the new kind to tests/fixtures/every_kind.py"
    assert recorded.MADE_UP.read_text() == recorded.made_up_text(), "stale: run `python -m tests.fixtures.recorded`"


def test_there_are_recorded_runs_of_every_end() -> None:
    statuses = {json.loads(recorded.state_file(name).read_text())["status"] for name in recorded.names()}

    assert statuses == {"finished", "failed", "stopped"}
