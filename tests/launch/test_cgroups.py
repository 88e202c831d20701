from __future__ import annotations

from pathlib import Path

import pytest

from accel_nb.launch.cgroups import Limits, read_limits

GIB = 1 << 30


class Tree:
    """A process's view of its control groups, as files."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.mount = folder / "cgroup"
        self.proc.mkdir()
        self.mount.mkdir()

    def describe(self, groups: str, *mounts: str) -> None:
        (self.proc / "cgroup").write_text(groups)
        (self.proc / "mountinfo").write_text("".join(f"{line}\n" for line in mounts))

    def write(self, group: str, **files: str) -> None:
        folder = self.mount / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text + "\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_version_2_takes_the_tightest_limit_on_the_way_up(tree: Tree) -> None:
    tree.describe("0::/user/job\n", f"30 1 0:1 / {tree.mount} rw - cgroup2 cgroup rw")
    tree.write("user/job", memory__max="max", memory__current="5", cpu__max="400000 100000")
    tree.write(
        "user", memory__max=str(4 * GIB), memory__current=str(3 * GIB), cpu__max="150000 100000",
        memory__stat=f"anon 1\ninactive_file {GIB}",
    )  # fmt: skip

    assert read_limits(tree.proc) == Limits(cpus=2, memory_bytes=4 * GIB, memory_free_bytes=2 * GIB)


def test_version_2_inside_a_cgroup_namespace(tree: Tree) -> None:
    tree.describe("0::/\n", f"30 1 0:1 /docker/abc {tree.mount} rw - cgroup2 cgroup rw")
    tree.write("", memory__max=str(GIB), memory__current="0", cpu__max="max 100000")

    assert read_limits(tree.proc) == Limits(cpus=None, memory_bytes=GIB, memory_free_bytes=GIB)


def test_version_1(tree: Tree) -> None:
    tree.describe(
        "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n",
        f"31 1 0:1 /docker/abc {tree.mount}/memory rw - cgroup cgroup rw,memory",
        f"32 1 0:2 /docker/abc {tree.mount}/cpu rw shared:3 - cgroup cgroup rw,cpu,cpuacct",
    )
    tree.write(
        "memory", memory__limit_in_bytes=str(2 * GIB), memory__usage_in_bytes=str(GIB),
        memory__stat="total_inactive_file 0",
    )  # fmt: skip
    tree.write("cpu", cpu__cfs_quota_us="250000", cpu__cfs_period_us="100000")

    assert read_limits(tree.proc) == Limits(cpus=3, memory_bytes=2 * GIB, memory_free_bytes=GIB)


def test_version_1_without_limits(tree: Tree) -> None:
    tree.describe(
        "4:memory:/\n3:cpu:/\n",
        f"31 1 0:1 / {tree.mount}/memory rw - cgroup cgroup rw,memory",
        f"32 1 0:2 / {tree.mount}/cpu rw - cgroup cgroup rw,cpu",
    )
    tree.write("memory", memory__limit_in_bytes="9223372036854771712", memory__usage_in_bytes="1")
    tree.write("cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")

    assert read_limits(tree.proc) == Limits()


def test_less_than_one_cpu_is_one(tree: Tree) -> None:
    tree.describe("0::/\n", f"30 1 0:1 / {tree.mount} rw - cgroup2 cgroup rw")
    tree.write("", cpu__max="20000 100000")

    assert read_limits(tree.proc).cpus == 1


def test_usage_above_the_limit_leaves_nothing_free(tree: Tree) -> None:
    tree.describe("0::/\n", f"30 1 0:1 / {tree.mount} rw - cgroup2 cgroup rw")
    tree.write("", memory__max=str(GIB), memory__current=str(2 * GIB))

    assert read_limits(tree.proc).memory_free_bytes == 0


def test_no_control_groups(tree: Tree) -> None:
    assert read_limits(tree.proc) == Limits()
