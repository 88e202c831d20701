from __future__ import annotations

import sysconfig
import threading
from collections.abc import Callable
from functools import partial

import pytest

from accel_nb.protocol.places import Place, is_users, place_text, users_place

SITE = sysconfig.get_path("purelib")
CODE = "def call(function):\n    return function()\n"


def from_file(name: str) -> Callable[[Callable[[], Place]], Place]:
    """A function of that file which calls what it is given, in line 2."""
    variables: dict[str, Callable[[Callable[[], Place]], Place]] = {}
    exec(compile(CODE, name, "exec"), variables)
    return variables["call"]


@pytest.mark.parametrize(
    "library", [f"{SITE}/torch/nn/modules/module.py", f"{SITE}/transformers/trainer.py", "<string>", "<frozen runpy>"]
)
def test_the_innermost_line_of_the_users_own_counts(library: str) -> None:
    inner, outer = from_file("<Cell In[3]>"), from_file("train.py")

    assert outer(partial(inner, partial(from_file(library), users_place))) == ("<Cell In[3]>", 2)


def test_without_code_of_the_users_it_is_a_librarys_but_not_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    from accel_nb.protocol import places

    monkeypatch.setattr(places, "_kinds", {})
    monkeypatch.setattr(places, "_LIBRARIES", ("",))  # this test's own code, too
    torchs, trainers = from_file(f"{SITE}/torch/a.py"), from_file(f"{SITE}/transformers/trainer.py")

    assert trainers(partial(torchs, users_place)) == (f"{SITE}/transformers/trainer.py", 2)


def test_text_of_a_place() -> None:
    assert place_text("<Cell In[3]>", 7) == "Cell In[3], line 7"
    assert place_text("/home/me/train.py", 7) == "train.py, line 7"
    assert place_text("", 0) == ""


def test_whose_a_file_is() -> None:
    assert is_users("<Cell In[3]>")
    assert is_users(__file__)
    assert not any(map(is_users, (f"{SITE}/torch/a.py", threading.__file__, "<frozen importlib._bootstrap>")))
