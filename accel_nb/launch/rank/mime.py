"""What an object can be shown as, by MIME type: the ``_repr_*_`` methods of IPython's documents, and figures.

Imports neither IPython nor matplotlib; a border module: it asks foreign objects what they can do.
"""

from __future__ import annotations

import base64
import inspect
import io
import json
import pprint
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

MAX_TEXT_CHARS = 64 << 10
MAX_BYTES = 8 << 20
"""Of one display, all kinds together: what a browser still shows without a pause."""

_METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/json": "_repr_json_",
    "application/javascript": "_repr_javascript_",
}
"""IPython 8 and 9, ``core/formatters.py``."""
_CANARY = "_ipython_canary_method_should_not_exist_"
"""Objects that claim to have any attribute claim to have this one (likewise)."""
_NEEDS_A_FRONT_END = "application/vnd.jupyter.widget-view+json"
"""The view of a widget whose model lives in the rank, which nobody can reach."""
_CONTAINERS = (dict, list, tuple, set, frozenset)


class Shown(NamedTuple):
    data: dict[str, str]
    """MIME type -> content: text; base64 for images; JSON text for kinds of JSON."""
    metadata: str = ""
    """JSON text; empty: there is none."""


class _Figure(Protocol):
    dpi: float

    def savefig(self, file: io.BytesIO, *, format: str, bbox_inches: str) -> None: ...  # noqa: A002  matplotlib's name


def shown_as(value: object) -> Shown:
    """All that `value` offers. What fails is told on stderr and left out; plain text there is always."""
    data: dict[str, str] = {"text/plain": _text(value)}
    metadata: dict[str, object] = {}
    for mime, method in _offers(value).items():
        content = _called(method)
        if isinstance(content, tuple):
            content, metadata[mime] = content
        if content is not None:
            data[mime] = _as_text(mime, content)
    bundle = _called(offer) if (offer := method_of(value, "_repr_mimebundle_")) is not None else None
    if isinstance(bundle, tuple):
        bundle, more = bundle
        metadata |= more
    if isinstance(bundle, Mapping):
        data |= {mime: _as_text(mime, content) for mime, content in bundle.items() if content is not None}
    return limited(data, metadata)


def limited(data: Mapping[str, object], metadata: Mapping[str, object]) -> Shown:
    """What of it can be sent: no views of widgets, and not more than `MAX_BYTES`."""
    texts = {mime: _as_text(mime, content) for mime, content in data.items() if mime != _NEEDS_A_FRONT_END}
    plain = texts.get("text/plain", "")
    if len(plain) > MAX_TEXT_CHARS:
        texts["text/plain"] = f"{plain[:MAX_TEXT_CHARS]}… {len(plain) - MAX_TEXT_CHARS:,} more characters"
    size = sum(map(len, texts.values()))
    if size > MAX_BYTES:
        told = f"(not shown otherwise: {size / 2**20:.0f} MiB; at most {MAX_BYTES >> 20} MiB are sent to the notebook)"
        return Shown({"text/plain": f"{texts.get('text/plain', '')}\n{told}".lstrip()})
    kept = {mime: about for mime, about in metadata.items() if about}
    return Shown(texts, json.dumps(kept, default=str) if kept else "")


def _offers(value: object) -> dict[str, Callable[[], Any]]:
    figures = sys.modules.get("matplotlib.figure")
    if figures is not None and isinstance(value, figures.Figure):
        return {"image/png": lambda: _png(value)}
    found = {mime: method_of(value, name) for mime, name in _METHODS.items()}
    return {mime: method for mime, method in found.items() if method is not None}


def method_of(value: object, name: str) -> Callable[..., Any] | None:
    """As IPython finds it; None for classes, and for objects that claim to have everything."""
    if inspect.isclass(value):
        return None
    try:
        if getattr(value, _CANARY, None) is not None:
            return None
        method = getattr(value, name, None)
    except Exception:  # noqa: BLE001  a user's __getattr__ may raise anything; then there is no such method
        return None
    return method if callable(method) else None


def _called(method: Callable[[], Any]) -> Any:  # noqa: ANN401  a user's method may give anything
    try:
        return method()
    except NotImplementedError:
        return None
    except Exception:  # noqa: BLE001  shown as IPython does, and the display goes on without it
        traceback.print_exc()
        return None


def _png(figure: _Figure) -> bytes:
    """As matplotlib's inline backend draws it: what is in the figure, without its margins."""
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    return file.getvalue()


def _text(value: object) -> str:
    try:
        return pprint.pformat(value, sort_dicts=False) if type(value) in _CONTAINERS else repr(value)
    except Exception:  # noqa: BLE001  a user's __repr__ may raise anything
        traceback.print_exc()
        return object.__repr__(value)


def _as_text(mime: str, content: object) -> str:
    if isinstance(content, bytes):
        return base64.b64encode(content).decode()
    if isinstance(content, str) and not mime.endswith("json"):
        return content
    return content if isinstance(content, str) and _is_json(content) else json.dumps(content, default=str)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
