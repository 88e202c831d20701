"""``python -m accel_nb.protocol.schema`` writes the JSON Schema that the page's TypeScript types are generated from.

accel_nb/protocol/*.py -> labextension/src/protocol/schema.json -> (npm run schema) generated.ts
"""

from __future__ import annotations

import json
import sys
from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec

from .events import Event, RunEvent
from .front_end import FromFrontEnd, ToFrontEnd
from .panel import PanelNews, PanelReply, PanelRequest
from .run_state import RunState

FILE = Path(__file__).parents[2] / "labextension" / "src" / "protocol" / "schema.json"
"""In a checkout of the project; an installed package has none."""

Schema = dict[str, Any]  # JSON as msgspec makes it

_ROOTS = {
    "run_event": RunEvent,
    "run_state": RunState,
    "to_front_end": ToFrontEnd,
    "from_front_end": FromFrontEnd,
    "panel_request": PanelRequest,
    "panel_reply": PanelReply,
    "panel_news": PanelNews,
}


def schema() -> Schema:
    """Draft 2020-12. A field is required when it is always written: in all but events, which leave out defaults."""
    references, definitions = msgspec.json.schema_components(_ROOTS.values(), ref_template="#/$defs/{name}")
    sparse = {kind.__name__ for kind in Event.__subclasses__()}
    for name, definition in definitions.items():
        if "description" in definition:
            definition["description"] = cleandoc(definition["description"])  # as msgspec does itself since 0.23
        if name not in sparse and "properties" in definition:
            definition["required"] = list(definition["properties"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Protocol",
        "type": "object",
        "properties": dict(zip(_ROOTS, references, strict=True)),
        "required": list(_ROOTS),
        "$defs": dict(sorted(definitions.items())),
    }


def schema_text() -> str:
    return json.dumps(schema(), indent=1) + "\n"


def main() -> None:
    """Write to the file that is named, to `FILE` when none is."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    file.write_text(schema_text())


if __name__ == "__main__":
    main()
