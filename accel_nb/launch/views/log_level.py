"""Tells lines that a logger wrote below WARNING, by how they look: their bytes are all that a rank's output holds."""

from __future__ import annotations

import re

_SEARCHED_CHARS = 200
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_LEVEL = r"TRACE|DEBUG|INFO|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL"
_FORMS = (
    # logging.basicConfig, Lightning, uvicorn, rich: "INFO:root:text", "INFO     text"; vLLM: "INFO 11-27 10:00:00 text"
    rf"\s*({_LEVEL})(?::|\s*[\]|]|\s{{2,}}|\s+\d)",
    # Transformers: "[INFO|trainer.py:3] text", "[info     ] text"
    rf"\s*\[({_LEVEL})\b",
    # Accelerate's examples, loguru, hydra, structlog, rich: a date or a time, soon afterwards the level
    rf"[\[(]*\d{{2,4}}[-:/.]\d\d.{{0,120}}?(?<!\w)({_LEVEL})(?!\w)",
    # "name - INFO - text", "name | INFO | text"
    rf"[^\s-][^-|]{{0,60}}\s[-|]\s({_LEVEL})\s+[-|:]",
)
_STYLES = tuple(re.compile(form) for form in _FORMS)
_BRACKETED = re.compile(rf"\[({_LEVEL})\s*\]", re.IGNORECASE)
_GLOG = re.compile(r"(?:\[rank\d+\]:)?\[?([A-Z])\d{4} \d\d:\d\d:\d\d")
"""glog, absl, torch: ``I1127 10:00:00.123456 file.cc:1] text``, torch's with the rank before it."""
_ROUTINE = frozenset({"TRACE", "DEBUG", "INFO", "SUCCESS", "I", "V", "D"})


def is_routine(line: str) -> bool:
    """Whether `line` looks like a record of a logger of a level below WARNING. A plain print does not."""
    text = _COLOURS.sub("", line[:_SEARCHED_CHARS])
    for style in (_GLOG, *_STYLES, _BRACKETED):
        if (found := style.match(text)) is not None:
            return found[1].upper() in _ROUTINE
    dated = re.match(r"[\[(]*\d{2,4}[-:/.]\d\d", text)
    bracketed = _BRACKETED.search(text) if dated is not None else None
    return bracketed is not None and bracketed[1].upper() in _ROUTINE
