from __future__ import annotations

from pathlib import Path

from accel_nb.launch.output.log_file import LogFile


def test_it_appends_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    log = LogFile(path)

    log.write(b"a" * 300_000)
    log.write(b"\x00\xff\n")
    log.close()

    assert path.read_bytes() == b"before\n" + b"a" * 300_000 + b"\x00\xff\n"
    assert log.trouble() is None


def test_a_full_disk_is_told_once_and_costs_lines_only() -> None:
    log = LogFile(Path("/dev/full"))

    log.write(b"line\n")
    log.write(b"line\n")

    assert log.trouble() == (
        "/dev/full cannot be written, lines will be missing there: No space left on device. The run goes on."
    )
    assert log.trouble() is None
    log.close()


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "gone" / "log")

    log.write(b"line\n")
    log.close()

    trouble = log.trouble()
    assert trouble is not None
    assert "No such file or directory" in trouble


def test_writing_after_the_end_does_nothing(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    log.close()

    log.write(b"late\n")
    log.close()

    assert (tmp_path / "log").read_bytes() == b""
