"""What it costs to take large data along, side by side with Hugging Face Accelerate's notebook_launcher in one run.

    python benchmarks/payload.py [--short]

A NumPy array and a CPU tensor, 1 GiB each, are globals of the launching process and used by the function; a third is
not used. 4 CPU ranks. One process per side plays the notebook kernel (`payload_parent.py`); the sides take turns. The
yardstick is writing the same bytes once to a fresh memory file, in the same process, between the launches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from select import select
from typing import TypeAlias

PARENT = Path(__file__).with_name("payload_parent.py")
DEADLINE_S = 180.0
GIB = 1 << 30
WANTED_PSS_BYTES = 3 * GIB
WANTED_WRITES, WANTED_EXTRA_S = 1.5, 0.5
"""A launch may take 1.5 times the yardstick and half a second."""

Figures: TypeAlias = dict[str, float]


class Parent:
    """A process that plays the notebook kernel for one side. Use from one thread; `close` it."""

    def __init__(self, side: str, num_bytes: int) -> None:
        self.side = side
        request_read, self._request = os.pipe()
        reply, reply_write = os.pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        words = [side, num_bytes, request_read, reply_write]
        self._process = subprocess.Popen(
            [sys.executable, str(PARENT), *map(str, words)],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, pass_fds=(request_read, reply_write),
        )  # fmt: skip
        os.close(request_read)
        os.close(reply_write)
        self._replies = os.fdopen(reply)

    def measure(self, case: str) -> dict[str, float | str]:
        """Figures of one case. Exits the benchmark with the reason when there are none."""
        os.write(self._request, f"{case}\n".encode())
        if not select([self._replies], [], [], DEADLINE_S)[0]:
            self._process.kill()
            sys.exit(f"{self.side}, {case}: no answer after {DEADLINE_S:g} s")
        line = self._replies.readline()
        if not line:
            self._log.seek(0)
            sys.exit(f"{self.side}, {case}: the process died\n{self._log.read().decode(errors='replace')}")
        reply = json.loads(line)
        if "error" in reply:
            sys.exit(f"{self.side}, {case}: {reply['error']}")
        figures: dict[str, float | str] = reply["figures"]
        return figures

    def numbers(self, case: str) -> Figures:
        return {name: float(value) for name, value in self.measure(case).items()}

    def close(self) -> None:
        os.close(self._request)
        self._process.wait(timeout=60)
        self._replies.close()
        self._log.close()


def verdict(*, met: bool) -> str:
    return "met" if met else "MISSED"


def launches(ours: Parent, upstream: Parent, num_rounds: int) -> bool:
    """Launch times beside the yardstick; True when what is wanted was met."""
    for parent in (ours, upstream):
        parent.measure("launch")  # a first launch also starts the warm server
    rounds = [
        {"write": ours.numbers("write_once"), "ours": ours.numbers("launch"), "upstream": upstream.numbers("launch")}
        for _ in range(num_rounds)
    ]
    write_s = statistics.median(figures["write"]["write_s"] for figures in rounds)
    print(f"writing the bytes once            {write_s:6.2f} s")
    for side in ("ours", "upstream"):
        entered_s, return_s = (
            statistics.median(figures[side][name] for figures in rounds) for name in ("entered_s", "return_s")
        )
        print(f"{side:<9} call to all in function  {entered_s:6.2f} s    call to return  {return_s:6.2f} s")
    entered_s, return_s = (
        statistics.median(figures["ours"][name] for figures in rounds) for name in ("entered_s", "return_s")
    )
    wanted_s = WANTED_WRITES * write_s + WANTED_EXTRA_S
    print(f"launch time at most {wanted_s:.2f} s: {verdict(met=return_s <= wanted_s)}")
    return return_s <= wanted_s


def memory(ours: Parent, upstream: Parent, scale: float) -> bool:
    added = {parent.side: parent.numbers("memory")["added_pss_bytes"] for parent in (ours, upstream)}
    for side, num_bytes in added.items():
        print(f"{side:<9} added PSS, 4 ranks having read all: {num_bytes / GIB:5.2f} GiB")
    wanted_bytes = WANTED_PSS_BYTES * scale
    print(f"added PSS below {wanted_bytes / GIB:.2f} GiB: {verdict(met=added['ours'] < wanted_bytes)}")
    return added["ours"] < wanted_bytes


def refusals(ours: Parent) -> bool:
    size_bytes = ours.numbers("unused")["size_bytes"]
    ships_nothing = size_bytes < 16 << 10
    print(f"payload of a function that does not use the large globals: {size_bytes:.0f} bytes: "
          f"{verdict(met=ships_nothing)}")  # fmt: skip
    refusal = ours.measure("too_large")
    text, seconds, added_bytes = str(refusal["text"]), float(refusal["refused_s"]), float(refusal["added_pss_bytes"])
    is_refused = "PayloadTooLarge" in text and "ENORMOUS" in text and added_bytes < 64 << 20
    print(f"payload of 8 TiB: after {seconds:.2f} s and {added_bytes / (1 << 20):.1f} MiB: {verdict(met=is_refused)}")
    print(f"  {text}")
    return ships_nothing and is_refused


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of large captured data, beside Accelerate's notebook_launcher.")
    parser.add_argument("--short", action="store_true", help="128 MiB each and one round: does it run")
    options = parser.parse_args()
    num_bytes, num_rounds = (128 << 20, 1) if options.short else (GIB, 5)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "numpy", "accelerate"))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, python {sys.version.split()[0]}, {versions}")
    print(f"2 x {num_bytes / GIB:g} GiB captured, 4 ranks, median of {num_rounds}")
    ours, upstream = Parent("ours", num_bytes), Parent("upstream", num_bytes)
    outcomes = [launches(ours, upstream, num_rounds), memory(ours, upstream, num_bytes / GIB), refusals(ours)]
    ours.close()
    upstream.close()
    return int(not all(outcomes) and not options.short)


if __name__ == "__main__":
    sys.exit(main())
