from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from accel_nb.launch.payload import memory_file, packing
from accel_nb.launch.payload.packing import pack, pack_value, unpack, unpack_value
from accel_nb.protocol.payload import BUFFER_ALIGNMENT_BYTES, OUT_OF_BAND_BYTES
from tests.launch.payload.notebook_stand_in import Notebook

MIB = 1 << 20


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    with Notebook() as notebook:
        notebook.run("import numpy as np")
        yield notebook


def smaps(pid: int) -> dict[str, int]:
    """Bytes by name, from /proc/PID/smaps_rollup."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


READER = """
import sys
from accel_nb.launch.payload.packing import unpack
function, args, kwargs = unpack(int(sys.argv[1]))
print("unpacked", flush=True)
for line in sys.stdin:
    print(function(line.strip()), flush=True)
"""


class Reader:
    """A child that maps a payload and calls its function with each line it is sent."""

    def __init__(self, fd: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, str(fd)],
            pass_fds=(fd,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "unpacked"

    def call(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.communicate(timeout=30)


def test_p06_ranks_share_one_copy_until_they_write(notebook: Notebook) -> None:
    notebook.run("""
        data = np.ones(500 << 17)
        def f(order):
            if order == "write":
                data[: 10 << 17] = 2.0
            return data.sum()
    """)
    num_bytes = notebook["data"].nbytes
    with pack(notebook["f"]) as packed:
        notebook.run("del data, f")
        readers = [Reader(packed.fd) for _ in range(2)]
        before = [smaps(reader.process.pid) for reader in readers]

        sums = [reader.call("read") for reader in readers]
        after = [smaps(reader.process.pid) for reader in readers]
        written = readers[0].call("write"), readers[1].call("read")
        private = smaps(readers[0].process.pid)["Private_Dirty"]
        for reader in readers:
            reader.close()

    assert sums == [str(float(500 << 17))] * 2
    assert sum(new["Pss"] - old["Pss"] for new, old in zip(after, before, strict=True)) < 1.1 * num_bytes
    assert sum(new["Private_Dirty"] - old["Private_Dirty"] for new, old in zip(after, before, strict=True)) < 5 * MIB
    assert written == (str(float(510 << 17)), str(float(500 << 17))), "a rank's write must stay its own"
    assert 10 * MIB <= private - before[0]["Private_Dirty"] < 20 * MIB


def test_p06_packing_makes_no_second_copy_in_the_kernel(notebook: Notebook) -> None:
    notebook.run("data = np.ones(200 << 17)\ndef f(): return data")
    before = smaps(os.getpid())["Private_Dirty"]

    with pack(notebook["f"]) as packed:
        assert packed.size_bytes > 200 * MIB
        assert smaps(os.getpid())["Private_Dirty"] - before < 20 * MIB


def test_large_arrays_lie_beside_the_pickle_small_ones_inside() -> None:
    large, small = np.ones(OUT_OF_BAND_BYTES, np.uint8), np.ones(OUT_OF_BAND_BYTES - 1, np.uint8)

    with pack_value([large, small]) as packed:
        header = memory_file.read_header(packed.fd)

    ((offset, num_bytes),) = header.buffers
    assert num_bytes == large.nbytes
    assert offset % BUFFER_ALIGNMENT_BYTES == 0
    assert small.nbytes < header.pickle_bytes < small.nbytes + 1000


ARRAYS = {
    "C order": np.arange(100_000.0).reshape(100, 1000),
    "Fortran order": np.asfortranarray(np.arange(100_000.0).reshape(100, 1000)),
    "transposed": np.arange(100_000.0).reshape(100, 1000).T,
    "with gaps": np.arange(200_000.0)[::2],
    "backwards": np.arange(100_000.0)[::-1],
    "booleans": np.arange(100_000) % 3 == 0,
    "dates": np.arange(20_000).astype("datetime64[s]"),
    "records": np.zeros(20_000, dtype=[("a", "i4"), ("b", "f8")]),
    "big-endian": np.arange(20_000, dtype=">i8"),
    "objects": np.array([None, "text", 3] * 10_000, dtype=object),
    "empty": np.zeros((0, 5)),
    "scalar": np.array(3.5),
    "text": np.array(["some", "words"] * 10_000),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_arrive_equal_and_writable(kind: str) -> None:
    array = ARRAYS[kind]

    with pack_value({"a": array}) as packed:
        value: Any = unpack_value(packed.fd)

    np.testing.assert_array_equal(value["a"], array)
    assert value["a"].dtype == array.dtype
    value["a"][...] = value["a"]


def test_a_read_only_array_stays_read_only() -> None:
    array = np.ones(100_000)
    array.flags.writeable = False

    with pack_value(array) as packed:
        value: Any = unpack_value(packed.fd)

    assert not value.flags.writeable


@pytest.mark.parametrize("copied_below", [0, 1 << 40], ids=["mapped", "copied"])
def test_results_outlive_their_file_and_each_other(monkeypatch: pytest.MonkeyPatch, copied_below: int) -> None:
    monkeypatch.setattr(packing, "COPIED_BELOW_BYTES", copied_below)

    with pack_value([np.ones(100_000), np.full(100_000, 2.0)]) as packed:
        first: Any = unpack_value(packed.fd)
        second: Any = unpack_value(packed.fd)
    first[0][:] = 5.0
    kept = first[1]
    del first

    assert kept.sum() == 200_000
    assert second[0].sum() == 100_000, "two loads of one file must not share what is written"


def test_small_results_keep_no_file_descriptor_open() -> None:
    before = psutil.Process().num_fds()

    values = []
    for _ in range(20):
        with pack_value(np.ones(100_000)) as packed:
            values.append(unpack_value(packed.fd))

    assert psutil.Process().num_fds() == before


def test_p06_a_large_payload_is_told_with_its_three_largest_names(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "LARGE_PAYLOAD_BYTES", 10 * MIB)
    notebook.run("""
        table = np.ones(4 << 17)
        class Set:
            def __init__(self):
                self.images = [np.ones(1 << 17) for _ in range(3)]
                self.labels = np.ones(2 << 17)
        dataset = Set()
        words = "x" * (1 << 20)
        def helper(): return table
        def train(first): return dataset, helper, words
    """)

    with pack(notebook["train"], (np.ones(2 << 17),)) as packed:
        (notice,) = packed.notices

    assert notice == (
        "train takes 12.0 MiB along to the ranks: train → global 'dataset' (5.0 MiB), train → global 'helper' → global "
        "'table' (4.0 MiB), train → argument 'first' (2.0 MiB). Data that is read from disk inside the function need "
        "not be copied at every launch."
    )


def test_p06_a_payload_of_ordinary_size_is_not_mentioned(notebook: Notebook) -> None:
    notebook.run("table = np.ones(1 << 17)\ndef train(): return table")

    with pack(notebook["train"]) as packed:
        assert packed.notices == ()


@pytest.mark.slow
@pytest.mark.skipif(psutil.virtual_memory().available < 12 << 30, reason="needs 12 GiB of free memory")
def test_p06_more_than_4_gib(notebook: Notebook) -> None:
    notebook.run("data = np.zeros((4 << 30) + 8, np.uint8)\ndata[-1] = 7\ndef f(order): return data.size, data[-1]")

    with pack(notebook["f"]) as packed:
        reader = Reader(packed.fd)
        answer = reader.call("")
        reader.close()

    assert answer == str(((4 << 30) + 8, np.uint8(7)))


def test_unpack_leaves_the_descriptor_to_its_owner() -> None:
    with pack(len, ([1, 2],)) as packed:
        unpack(packed.fd)

        os.fstat(packed.fd)
