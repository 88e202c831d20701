"""What objects are shown as, by MIME type."""

from __future__ import annotations

import base64
import json

import pytest

from accel_nb.launch.rank.mime import MAX_BYTES, limited, shown_as


class Rich:
    def _repr_html_(self) -> str:
        return "<b>rich</b>"

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        return b"\x89PNG", {"width": 3}

    def _repr_json_(self) -> dict[str, int]:
        return {"a": 1}

    def _repr_latex_(self) -> None:
        return None

    def __repr__(self) -> str:
        return "Rich()"


class Bundle:
    def _repr_mimebundle_(self) -> tuple[dict[str, object], dict[str, object]]:
        return {"application/x+json": {"b": [1]}, "text/plain": "own text"}, {"application/x+json": {"k": 1}}


class Broken:
    def _repr_html_(self) -> str:
        raise ValueError("no html today")

    def __repr__(self) -> str:
        return "Broken()"


class ClaimsEverything:
    def __getattr__(self, name: str) -> object:
        return lambda: f"made up for {name}"


class Widget:
    def _repr_mimebundle_(self) -> dict[str, object]:
        return {"application/vnd.jupyter.widget-view+json": {"model_id": "x"}, "text/plain": "Widget()"}


def test_u12_all_that_an_object_offers_is_kept() -> None:
    data, metadata = shown_as(Rich())

    assert data == {
        "text/plain": "Rich()",
        "text/html": "<b>rich</b>",
        "image/png": base64.b64encode(b"\x89PNG").decode(),
        "application/json": '{"a": 1}',
    }
    assert json.loads(metadata) == {"image/png": {"width": 3}}


def test_a_bundle_of_its_own_wins() -> None:
    data, metadata = shown_as(Bundle())

    assert data == {"text/plain": "own text", "application/x+json": '{"b": [1]}'}
    assert json.loads(metadata) == {"application/x+json": {"k": 1}}


def test_what_fails_is_told_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    data, _ = shown_as(Broken())

    assert data == {"text/plain": "Broken()"}
    assert "ValueError: no html today" in capsys.readouterr().err


def test_classes_and_objects_that_claim_everything_are_plain_text() -> None:
    assert shown_as(Rich).data == {"text/plain": repr(Rich)}
    assert set(shown_as(ClaimsEverything()).data) == {"text/plain"}


def test_u07_the_view_of_a_widget_that_lives_in_the_rank_is_not_sent() -> None:
    assert shown_as(Widget()).data == {"text/plain": "Widget()"}


def test_containers_are_laid_out() -> None:
    assert shown_as({"b": 1, "a": list(range(40))}).data["text/plain"].startswith("{'b': 1,\n 'a': [0,\n")


def test_o13_what_is_too_large_is_text_that_says_so() -> None:
    data, _ = limited({"text/plain": "Figure", "image/png": "x" * (MAX_BYTES + 1)}, {})

    assert data == {"text/plain": "Figure\n(not shown otherwise: 8 MiB; at most 8 MiB are sent to the notebook)"}


def test_long_text_is_cut() -> None:
    text = shown_as("y" * 100_000).data["text/plain"]

    assert text.endswith("… 34,466 more characters")
