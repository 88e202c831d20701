from __future__ import annotations

import gc
import mmap
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from accel_nb.errors import NotPicklable, PayloadTooLarge, ResultError
from accel_nb.launch.payload import captured, free_memory
from accel_nb.launch.payload.packing import pack, pack_value, unpack_value
from tests.launch.payload.notebook_stand_in import Notebook


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    with Notebook() as notebook:
        notebook.run("""
            import functools, sqlite3, threading, types
            class Box:
                def __init__(self, **attributes): vars(self).update(attributes)
                def method(self): return self
        """)
        yield notebook


def refusal(function: Any, *args: object, **kwargs: object) -> NotPicklable:  # noqa: ANN401  any callable
    begin = time.monotonic()
    with pytest.raises(NotPicklable) as raised:
        pack(function, args, kwargs)
    assert time.monotonic() - begin < 20, "an object that cannot travel is looked for without end"
    return raised.value


CULPRITS = {
    "lock": ("threading.Lock()", "_thread.lock"),
    "open file": ("open('/dev/null')", "_io.TextIOWrapper"),
    "binary file": ("open('/dev/null', 'rb')", "_io.BufferedReader"),
    "generator": ("(x for x in [1])", "generator"),
    "sqlite connection": ("sqlite3.connect(':memory:')", "sqlite3.Connection"),
}


@pytest.mark.parametrize("kind", CULPRITS)
def test_p03_a_global_that_cannot_travel_is_named(notebook: Notebook, kind: str) -> None:
    expression, type_name = CULPRITS[kind]
    notebook.run(f"db = Box(_conn={expression})\ndef train(): return db")

    error = refusal(notebook["train"])
    getattr(notebook["db"]._conn, "close", lambda: None)()

    assert error.path == "train → global 'db' → attribute '_conn'"
    assert str(error).startswith(f"{error.path} cannot be sent to the ranks: its type {type_name} cannot be pickled (")
    assert "Nothing was started." in str(error)
    assert "inside train" in str(error)


def test_p03_the_whole_message(notebook: Notebook) -> None:
    notebook.run("lock = threading.Lock()\ndef train(): return lock")

    assert str(refusal(notebook["train"])) == (
        "train → global 'lock' cannot be sent to the ranks: its type _thread.lock cannot be pickled (cannot pickle "
        "'_thread.lock' object). Nothing was started. Create it inside train, and pass what is needed to create it "
        "(a path, an address, a seed)."
    )


PLACES = {
    "argument by position": ("def train(a, b): pass", "train", ("LOCK",), {}, "train → argument 'a'"),
    "further positions": ("def train(*rest): pass", "train", (1, "LOCK"), {}, "train → argument 1"),
    "argument by name": ("def train(b): pass", "train", (), {"b": "LOCK"}, "train → argument 'b'"),
    "default": ("def train(a, b=LOCK): pass", "train", (), {}, "train → default of 'b'"),
    "keyword default": ("def train(*, b=LOCK): pass", "train", (), {}, "train → default of 'b'"),
    "closure": (
        "def outer():\n    held = LOCK\n    def train(): return held\n    return train",
        "outer()",
        (),
        {},
        "train → closure variable 'held'",
    ),
    "closure of a helper": (
        "def outer():\n    held = LOCK\n    return lambda: held\nhelper = outer()\ndef train(): return helper()",
        "train",
        (),
        {},
        "train → global 'helper' → closure variable 'held'",
    ),
    "containers": (
        "data = {'a': [0, (1, LOCK)]}\ndef train(): return data",
        "train",
        (),
        {},
        "train → global 'data' → key 'a' → item 1 → item 1",
    ),
    "bound method": ("box = Box(lock=LOCK)", "box.method", (), {}, "method → self → attribute 'lock'"),
    "partial": (
        "def train(a): pass\njob = functools.partial(train, a=LOCK)",
        "job",
        (),
        {},
        "train → argument 'a'",
    ),
    "class attribute": (
        "class Net:\n    guard = LOCK\ndef train(): return Net",
        "train",
        (),
        {},
        "train → global 'Net' → class attribute 'guard'",
    ),
    "method of a class": (
        (
            "def outer():\n    held = LOCK\n    class Net:\n        def forward(self): return held\n    return Net\n"
            "Net = outer()\ndef train(): return Net"
        ),
        "train",
        (),
        {},
        "train → global 'Net' → method 'forward' → closure variable 'held'",
    ),
    "attribute of the function": ("def train(): pass\ntrain.lock = LOCK", "train", (), {}, "train → attribute 'lock'"),
    "slots": (
        "class Slim:\n    __slots__ = ('x',)\nslim = Slim()\nslim.x = LOCK\ndef train(): return slim",
        "train",
        (),
        {},
        "train → global 'slim' → attribute 'x'",
    ),
    "subclass of list": (
        "class Many(list): pass\nmany = Many([LOCK])\ndef train(): return many",
        "train",
        (),
        {},
        "train → global 'many' → item 0",
    ),
    "subclass of dict": (
        "from collections import OrderedDict\nmany = OrderedDict(x=LOCK)\ndef train(): return many",
        "train",
        (),
        {},
        "train → global 'many' → key 'x'",
    ),
    "object array": (
        "import numpy as np\nmany = np.array([None, LOCK], dtype=object)\ndef train(): return many",
        "train",
        (),
        {},
        "train → global 'many' → item 1",
    ),
    "cycle": (
        "ring = []\nring += [ring, Box(ring=ring, lock=LOCK)]\ndef train(): return ring",
        "train",
        (),
        {},
        "train → global 'ring' → item 1 → attribute 'lock'",
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_p03_every_place_has_a_path(notebook: Notebook, place: str) -> None:
    cell, expression, args, kwargs, path = PLACES[place]
    notebook.run("LOCK = threading.Lock()\n" + cell)
    lock = notebook["LOCK"]
    notebook.run(f"function = {expression}")

    error = refusal(
        notebook["function"],
        *[lock if value == "LOCK" else value for value in args],
        **dict.fromkeys(kwargs, lock),
    )

    assert error.path == path


def test_p03_the_function_itself() -> None:
    assert refusal(threading.Lock()).path == "lock"


def test_p03_a_reducer_that_raises_is_quoted(notebook: Notebook) -> None:
    notebook.run("""
        class Proud:
            def __reduce__(self): raise ValueError("I stay here")
        proud = Proud()
        def train(): return proud
    """)

    error = refusal(notebook["train"])

    assert error.path == "train → global 'proud'"
    assert "its type Proud cannot be pickled (ValueError: I stay here)" in str(error)


def test_p03_a_proxy_that_hides_its_class_is_named(notebook: Notebook) -> None:
    notebook.run("""
        class Proxy:
            @property
            def __class__(self): raise RuntimeError("not bound")
            def __reduce_ex__(self, _): raise RuntimeError("not bound")
        box = Box(proxy=Proxy())
        def train(): return box
    """)

    error = refusal(notebook["train"])

    assert error.path == "train → global 'box' → attribute 'proxy'"
    assert "its type Proxy cannot be pickled (RuntimeError: not bound)" in str(error)


def test_p03_what_can_be_pickled_beside_the_culprit_is_not_blamed(notebook: Notebook) -> None:
    notebook.run("""
        import pickle
        class Buffered:
            def __reduce__(self): return bytes, (pickle.PickleBuffer(b"x"),)
        def train(): return Buffered(), fine, box
        fine = [Buffered(), functools.partial(print), types, len, Box.method, range(3)]
        box = Box(deep=[[threading.Lock()]])
    """)

    assert refusal(notebook["train"]).path == "train → global 'box' → attribute 'deep' → item 0 → item 0"


def test_p03_a_long_way_is_shortened(notebook: Notebook) -> None:
    notebook.run("""
        chain = threading.Lock()
        for _ in range(30):
            chain = Box(next=chain)
        def train(): return chain
    """)

    path = refusal(notebook["train"]).path

    assert path.startswith("train → global 'chain' → attribute 'next'")
    assert " → … → " in path
    assert path.count("→") < 10


def test_p03_nesting_too_deep_for_pickle_says_so(notebook: Notebook) -> None:
    notebook.run("""
        chain = None
        for _ in range(100_000):
            chain = [chain]
        def train(): return chain
    """)

    assert "excessively deep recursion" in str(refusal(notebook["train"]))


def test_p03_a_huge_neighbour_does_not_hide_the_culprit(notebook: Notebook) -> None:
    notebook.run("""
        many = [[number] for number in range(300_000)]
        lock = threading.Lock()
        def train(): return many, Box(), lock
    """)

    assert refusal(notebook["train"]).path == "train → global 'lock'"


def test_p03_a_search_without_an_end_is_given_up(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "DEADLINE_S", 0.0)
    notebook.run("lock = threading.Lock()\ndef train(): return lock")

    error = refusal(notebook["train"])

    assert error.path == "train"
    assert "it leads to an object of type _thread.lock, or to one inside it" in str(error)
    assert "The way there was not found." in str(error)


RETURNED = {
    "alone": ("LOCK", "return value"),
    "key": ("{'x': [1, LOCK]}", "return value → key 'x' → item 1"),
    "attribute": ("Box(model=Box(lock=LOCK))", "return value → attribute 'model' → attribute 'lock'"),
    "key that is no text": ("{(1, 2): LOCK}", "return value → key of type tuple"),
}


@pytest.mark.parametrize("kind", RETURNED)
def test_p09_a_value_that_cannot_come_back_is_named(notebook: Notebook, kind: str) -> None:
    expression, path = RETURNED[kind]
    notebook.run(f"LOCK = threading.Lock()\nvalue = {expression}")

    with pytest.raises(NotPicklable) as raised:
        pack_value(notebook["value"])

    assert raised.value.path == path
    assert str(raised.value) == (
        f"{path} cannot be brought back to the kernel: its type _thread.lock cannot be pickled (cannot pickle "
        "'_thread.lock' object). Return plain data instead: tensors, arrays, numbers, text, a model or its state_dict."
    )


def _breaks_when_loaded() -> None:
    raise RuntimeError("default process group has not been initialized")


class Wrapper:
    def __reduce__(self) -> tuple[object, ...]:
        return _breaks_when_loaded, ()


def test_p09_a_value_that_cannot_be_rebuilt_says_what_to_return() -> None:
    with pack_value(Wrapper()) as packed, pytest.raises(ResultError) as raised:
        unpack_value(packed.fd)

    assert "cannot be rebuilt here: RuntimeError: default process group has not been initialized." in str(raised.value)
    assert "accelerator.unwrap_model(model)" in str(raised.value)


def test_p08_an_exception_whose_constructor_takes_other_arguments(notebook: Notebook) -> None:
    notebook.run("""
        class Odd(Exception):
            def __init__(self, a, b): super().__init__(a)
        error = Odd(1, 2)
        class Worse(Exception):
            def __reduce__(self): raise ValueError("no")
        class Locked(Exception): pass
        locked = Locked("held")
        locked.lock = threading.Lock()
    """)

    with pack_value(notebook["error"]) as packed, pytest.raises(ResultError, match="missing 1 required positional"):
        unpack_value(packed.fd)
    with pytest.raises(NotPicklable, match="ValueError: no"):
        pack_value(notebook["Worse"]("x"))
    with pytest.raises(NotPicklable, match="attribute 'lock'"):
        pack_value(notebook["locked"])


class Thing:
    """Can be watched by a weak reference."""


def test_y08_no_argument_is_held_after_an_error(notebook: Notebook) -> None:
    notebook.run("def train(thing, lock): return thing")
    thing: Thing | None = Thing()
    watch = weakref.ref(thing)

    try:
        pack(notebook["train"], (thing, threading.Lock()), {})
    except NotPicklable as error:
        sys.last_value = error
    thing = None
    gc.collect()

    assert isinstance(sys.last_value, NotPicklable)
    assert watch() is None
    assert sys.last_value.__context__ is None
    del sys.last_value


def test_y08_no_argument_is_held_after_packing(notebook: Notebook) -> None:
    notebook.run("def train(thing): return thing")
    thing: Thing | None = Thing()
    array: np.ndarray[Any, Any] | None = np.zeros(1 << 20)
    watches = weakref.ref(thing), weakref.ref(array)
    gc.disable()
    try:
        with pack(notebook["train"], (thing, array)):
            thing = array = None

            assert [watch() for watch in watches] == [None, None]
    finally:
        gc.enable()


def test_y08_an_interrupt_holds_nothing_either(notebook: Notebook) -> None:
    notebook.run("""
        class Slow:
            def __reduce__(self): raise KeyboardInterrupt
        def train(thing, slow): return thing
    """)
    thing: Thing | None = Thing()
    watch = weakref.ref(thing)

    with pytest.raises(KeyboardInterrupt) as raised:
        pack(notebook["train"], (thing, notebook["Slow"]()))
    thing = None
    gc.collect()

    assert raised.value.__context__ is None
    assert watch() is None


@pytest.fixture
def enormous() -> np.ndarray[Any, Any]:
    """An array that is larger than any memory, and takes none: nothing of its file was ever written."""
    fd = os.memfd_create("enormous")
    os.ftruncate(fd, 1 << 44)
    area = mmap.mmap(fd, 1 << 44, prot=mmap.PROT_READ)
    os.close(fd)
    return np.frombuffer(area, dtype=np.uint8)


def test_p06_what_does_not_fit_is_refused_before_it_is_copied(
    notebook: Notebook, enormous: np.ndarray[Any, Any]
) -> None:
    notebook.run("small, ds = bytearray(1 << 20), Box()\ndef train(first): return small, ds")
    notebook["ds"].images = enormous[: 3 << 42]

    with pytest.raises(PayloadTooLarge) as raised:
        pack(notebook["train"], (enormous[: 1 << 42],))
    del notebook["ds"].images

    message = str(raised.value)
    assert "train does not fit: it needs 16384.0 GiB of memory, and " in message
    assert (
        "The largest: train → global 'ds' (12288.0 GiB), train → argument 'first' (4096.0 GiB), "
        "train → global 'small' (1.0 MiB)." in message
    )


def test_p06_an_array_with_gaps_is_refused_before_it_is_copied(enormous: np.ndarray[Any, Any]) -> None:
    with pytest.raises(PayloadTooLarge, match=r"argument 'x' \(8192\.0 GiB\)"):
        pack(lambda x: x, (enormous[::2],))


def test_p06_bytes_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "free_memory_bytes", lambda: 20 << 20)

    with pytest.raises(PayloadTooLarge, match=r"it needs 30\.0 MiB of memory, and 20\.0 MiB are free"):
        pack(lambda x: x, (bytes(30 << 20),))


def test_p06_a_result_that_does_not_fit_is_refused(enormous: np.ndarray[Any, Any]) -> None:
    with pytest.raises(
        PayloadTooLarge, match=r"return value does not fit: .* → key 'x' \(16384\.0 GiB\)\. Return less"
    ):
        pack_value({"x": enormous})
