from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from accel_nb.errors import PayloadError, PythonMismatch
from accel_nb.launch.payload import memory_file
from accel_nb.launch.payload.memory_file import MemoryFileWriter, Packed, new_file
from accel_nb.launch.payload.packing import pack, pack_value, unpack, unpack_value
from tests.launch.payload.notebook_stand_in import Notebook, RankError, in_rank


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    with Notebook() as notebook:
        yield notebook


CELLS = {
    "function": ("def f(rank): return rank + 1", "f", 4),
    "lambda": ("f = lambda rank: rank * 2", "f", 6),
    "closure": ("def outer(n):\n    def inner(rank): return rank + n\n    return inner", "outer(10)", 13),
    "nested": ("def f(rank):\n    def g(): return helper(rank)\n    return g()\ndef helper(x): return -x", "f", -3),
    "decorated": (
        (
            "import functools\n"
            "def twice(g):\n    @functools.wraps(g)\n    def wrapper(*a): return g(g(*a))\n    return wrapper\n"
            "@twice\ndef f(rank): return rank + 5"
        ),
        "f",
        13,
    ),
    "bound method": (
        "class Trainer:\n    def __init__(self, n): self.n = n\n    def fit(self, rank): return self.n + rank",
        "Trainer(4).fit",
        7,
    ),
    "classmethod": ("class A:\n    n = 2\n    @classmethod\n    def f(cls, rank): return cls.n + rank", "A.f", 5),
    "callable object": ("class A:\n    def __call__(self, rank): return [rank]", "A()", [3]),
    "partial": ("import functools\ndef g(a, rank, b): return a, rank, b", "functools.partial(g, 1, b=2)", (1, 3, 2)),
    "async helper": (
        (
            "import asyncio\nasync def wait(x):\n    await asyncio.sleep(0)\n    return x\n"
            "def f(rank): return asyncio.run(wait(rank))"
        ),
        "f",
        3,
    ),
    "super": (
        (
            "class A:\n    def f(self, rank): return rank\n"
            "class B(A):\n    def f(self, rank): return super().f(rank) + 100"
        ),
        "B().f",
        103,
    ),
    "dataclass": (
        (
            "from dataclasses import dataclass, field\n@dataclass\nclass Config:\n    lr: float\n"
            "    tags: list = field(default_factory=list)\nconfig = Config(0.5)\n"
            "def f(rank): return config.lr, Config(1).tags"
        ),
        "f",
        (0.5, []),
    ),
    "enum": (
        (
            "from enum import Enum\nclass Mode(Enum):\n    TRAIN = 1\n    TEST = 2\n"
            "def f(rank): return Mode.TRAIN.name, Mode(2).name, Mode.TEST is Mode(2)"
        ),
        "f",
        ("TRAIN", "TEST", True),
    ),
    "generator function": ("def g(n):\n    yield from range(n)\ndef f(rank): return list(g(rank))", "f", [0, 1, 2]),
    "recursion": ("def f(n): return 1 if n == 0 else n * f(n - 1)", "f", 6),
}


@pytest.mark.parametrize("kind", CELLS)
def test_p01_what_is_typed_in_a_cell_runs_in_a_rank(notebook: Notebook, kind: str) -> None:
    cell, expression, expected = CELLS[kind]
    notebook.run(cell)

    assert notebook.launch(expression, 3) == expected


def test_p01_a_function_redefined_in_a_later_cell_is_sent_in_its_newest_form(notebook: Notebook) -> None:
    notebook.run("def helper(): return 'old'\ndef f(): return helper()")
    notebook.run("def helper(): return 'new'")

    assert notebook.launch("f") == "new"


def test_arguments_defaults_and_keyword_arguments_arrive(notebook: Notebook) -> None:
    notebook.run("def f(a, b=2, *rest, c, d=4, **more): return a, b, rest, c, d, more")

    assert notebook.launch("f", 1, c=3, e=5) == (1, 2, (), 3, 4, {"e": 5})


def test_functions_share_their_globals_in_a_rank(notebook: Notebook) -> None:
    notebook.run("""
        count = 0
        def add():
            global count
            count += 1
        def f():
            add(); add()
            return count
    """)

    assert notebook.launch("f") == 2
    assert notebook["count"] == 0, "what a rank does to a global must not reach the notebook"


def test_a_rank_finds_classes_and_functions_by_name_in_its_main(notebook: Notebook) -> None:
    notebook.run("""
        import pickle
        class Net:
            pass
        def helper(): return 7
        def f():
            copy = pickle.loads(pickle.dumps((Net(), helper)))
            return type(copy[0]) is Net, copy[1]()
    """)

    assert notebook.launch("f") == (True, 7)


def test_p06_unused_globals_are_not_sent(notebook: Notebook) -> None:
    notebook.run("def f(): return 1")
    with pack(notebook["f"]) as packed:
        without = packed.size_bytes

    notebook.run("unused = bytearray(1 << 20)")
    with pack(notebook["f"]) as packed:
        assert packed.size_bytes == without


def test_streams_of_the_process_are_those_of_the_rank(notebook: Notebook) -> None:
    notebook.run(
        "import sys\nout, err = sys.stdout, sys.stderr\ndef f(): return out is sys.stdout and err is sys.stderr"
    )

    assert notebook.launch("f")


def test_any_thread_may_pack(notebook: Notebook) -> None:
    notebook.run("def f(): return 5")
    packed: list[Packed] = []
    thread = threading.Thread(target=lambda: packed.append(pack(notebook["f"])))

    thread.start()
    thread.join()

    with packed[0]:
        assert in_rank(packed[0]) == 5


@pytest.mark.parametrize("value", [None, 3, "text", b"bytes", [1, (2, {3})], {"loss": [0.5]}, range(3), ...])
def test_p09_plain_values_come_back(value: object) -> None:
    with pack_value(value) as packed:
        assert unpack_value(packed.fd) == value


def test_packing_plain_values_imports_neither_torch_nor_numpy() -> None:
    program = (
        "import sys\n"
        "from accel_nb.launch.payload.packing import pack, pack_value, unpack_value\n"
        "packed = pack(lambda x: x + 1, (1,))\n"
        "value = pack_value({'a': 1})\n"
        "assert unpack_value(value.fd) == {'a': 1}\n"
        "print({'torch', 'numpy', 'IPython'} & set(sys.modules))"
    )

    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert child.stdout.strip() == "set()"


def test_a_module_the_rank_cannot_import_is_named(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def helper(): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    notebook.run("import only_here\ndef f(): return only_here.helper()")

    with pytest.raises(RankError, match=r"PayloadError: f cannot be loaded in the rank: .*No module named 'only_here'"):
        notebook.launch("f")


@pytest.mark.parametrize(("field", "version"), [("python", "3.7"), ("cloudpickle", "2.2.1")])
def test_other_versions_are_refused_before_anything_is_loaded(field: str, version: str) -> None:
    writer = MemoryFileWriter()
    writer.write(b"this is not a pickle")
    with pack(test_other_versions_are_refused_before_anything_is_loaded) as template:
        header = memory_file.read_header(template.fd)

    header = replace(header, pickle_bytes=writer.pickle_bytes, **{field: version})
    with writer.finish(header) as packed, pytest.raises(PythonMismatch) as raised:
        unpack(packed.fd)

    message = str(raised.value)
    assert version in message
    assert f"this rank runs Python {sys.version_info[0]}.{sys.version_info[1]} with cloudpickle 3." in message
    assert "pip install cloudpickle==" in message


def test_a_file_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"something else entirely, long enough")

    refused = pytest.raises(ValueError, match="not a memory file of this version: it starts with b'somethin'")
    with path.open("rb") as file, refused:
        unpack_value(file.fileno())


def test_nobody_can_change_a_finished_file() -> None:
    with pack_value([1, 2]) as packed, pytest.raises(PermissionError):
        os.pwrite(packed.fd, b"x", 0)


def test_closing_twice_is_closing_once() -> None:
    packed = pack_value(1)
    packed.close()
    other = os.open(os.devnull, os.O_RDONLY)  # takes the number that has become free

    packed.close()

    os.fstat(other)
    os.close(other)


def test_a_forgotten_file_is_closed_with_its_object() -> None:
    packed = pack_value(1)
    fd = packed.fd

    del packed

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_without_memfd_a_temporary_file_takes_its_place(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def memfd_create(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", memfd_create)

    with pack_value({"a": bytearray(100_000)}) as packed:
        assert unpack_value(packed.fd) == {"a": bytearray(100_000)}


def test_a_python_that_knows_no_memfd_uses_a_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")

    with pack_value(7) as packed:
        assert unpack_value(packed.fd) == 7
        assert "/memfd:" not in str(Path(f"/proc/self/fd/{packed.fd}").readlink())


def test_another_failure_of_memfd_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def memfd_create(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", memfd_create)

    with pytest.raises(OSError, match="Too many open files"):
        new_file()


def test_a_refusal_is_a_payload_error_and_starts_nothing() -> None:
    with pytest.raises(PayloadError, match=r"Nothing was started\."):
        pack(lambda lock: lock, (threading.Lock(),))
