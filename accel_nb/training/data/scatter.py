"""Rank 0 sends each other rank its own part of every step, ahead of its use.

    rank 0      read step 1 | send it | work on step 0 | read step 2 | send it | work on step 1 | ...
    rank r                  | receive step 1 while working on step 0 | receive step 2 ...

One message per step and rank: a header, the parcel's description if it is a new one, and small contents. What does not
fit into the size that a message before announced follows in a second one, and large contents each in one of their own.
Messages are sent and received by gloo's own thread, between two ranks at a time, over a process group that serves one
loader alone: none of it meets the collectives of the training, and no thread of ours runs the user's code.
"""

from __future__ import annotations

import threading
import traceback
from abc import abstractmethod
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from ...errors import AnotherRankFailed, TrainingError
from ..operations.nested import Data
from .dealing import NOTHING, Step
from .messages import AHEAD, Header, Kind, Rows, header_bytes, one_piece
from .parcels import Content, contents_of, pack, text_in, unpack

INLINE_BYTES = 1 << 18
"""More than this is not sent on the guess that later messages will be as long."""
BYTES_IN_FLIGHT = 1 << 24
"""Rank 0 runs ahead of a rank that takes its time by AHEAD steps, or two if they are larger than this: memory, against
waiting."""
_FIRST, _FURTHER = 0, 1
"""Tags of a step's first message and of the others: each kind is taken in the order it was sent in."""
FAREWELL_S = 10.0
"""How long rank 0 waits to see the news of its own failure off. Others may have ended meanwhile."""


class Outlet:
    """Rank 0's end of the way to rank `rank`."""

    def __init__(self, group: distributed.ProcessGroup, rank: int) -> None:
        self._group, self._rank = group, rank
        self._inline_bytes = deque([0] * AHEAD)
        """What fits behind the headers of the coming messages, as it was announced."""
        self._description = b""
        self._described_before = False
        self._in_flight: deque[list[tuple[distributed.Work, torch.Tensor]]] = deque()
        """Steps whose messages may not have left. The tensors must live as long."""
        self.is_open = False
        """A pass has begun, and its end has not been sent."""

    def send(self, batch: Data, rows: Rows) -> None:
        """Send one rank's part of a step. Waits while it has too many others to take."""
        parcel = pack(batch)
        description = b"" if parcel.description == self._description else parcel.description
        self._description = parcel.description
        self._post(Kind.BATCH, rows, description, parcel.small, parcel.large)

    def finish(self, kind: Kind, text: str = "") -> None:
        """Send that no more comes in this pass."""
        if self.is_open:
            self.is_open = False
            self._post(kind, Rows(None, (0,) * self._group.size()), text.encode(errors="replace"))

    def wait(self, timeout_s: float | None = None) -> None:
        """Until all that was sent has left. TrainingError when the other rank is gone."""
        while self._in_flight:
            self._wait_for_oldest(timeout_s)

    def _post(
        self, kind: Kind, rows: Rows, description: bytes,
        small: Sequence[torch.Tensor] = (), large: Sequence[torch.Tensor] = (),
    ) -> None:  # fmt: skip
        while len(self._in_flight) >= (AHEAD if self._num_bytes_in_flight() < BYTES_IN_FLIGHT else 2):
            self._wait_for_oldest()
        small_bytes = sum(map(torch.Tensor.numel, small))
        # Texts make each description a new one; a batch of nothing but tensors has one for all steps.
        likely_bytes = small_bytes + (len(description) if self._described_before else 0)
        self._described_before = bool(description)
        announced_bytes = likely_bytes + likely_bytes // 8 if likely_bytes <= INLINE_BYTES else 0
        if kind is not Kind.BATCH:
            announced_bytes = self._inline_bytes[-1]
        self._inline_bytes.append(announced_bytes)
        header = Header(kind, len(description), small_bytes, announced_bytes, rows)
        inline_bytes = self._inline_bytes.popleft()
        first_bytes = header_bytes(self._group.size()) + inline_bytes
        if header.body_bytes <= inline_bytes:
            messages = [one_piece(header.to_bytes() + description, small, first_bytes)]
        else:
            messages = [one_piece(header.to_bytes(), (), first_bytes)]
            messages.append(one_piece(description, small, header.body_bytes))
        first, *others = [*messages, *large]
        works = [self._start(first, _FIRST), *(self._start(other, _FURTHER) for other in others)]
        self._in_flight.append(list(zip(works, (first, *others), strict=True)))

    def _num_bytes_in_flight(self) -> int:
        return sum(message.numel() for step in self._in_flight for _, message in step)

    def _start(self, message: torch.Tensor, tag: int) -> distributed.Work:
        work = distributed.isend(message, self._rank, group=self._group, tag=tag)
        assert work is not None  # only for ranks outside the group
        return work

    def _wait_for_oldest(self, timeout_s: float | None = None) -> None:
        for work, _ in self._in_flight.popleft():
            try:
                work.wait() if timeout_s is None else work.wait(timedelta(seconds=timeout_s))
            except RuntimeError as error:
                raise AnotherRankFailed(
                    f"rank {self._rank} does not take the batches that rank 0 reads for it: {error}"
                ) from error


class Arrival:
    """A part that is on its way."""

    def __init__(
        self, description: bytes, contents: Sequence[Content], received: Sequence[torch.Tensor],
        pending: Sequence[distributed.Work], rows: Rows,
    ) -> None:  # fmt: skip
        self.rows = rows
        self._description, self._contents, self._received, self._pending = description, contents, received, pending

    def wait(self) -> None:
        for work in self._pending:
            _wait(work)

    def batch(self) -> Data:
        """The part, once it is here."""
        self.wait()
        return unpack(self._description, self._contents, self._received)


class Inlet:
    """Another rank's end of the way from rank 0. For one thread at a time."""

    def __init__(self, group: distributed.ProcessGroup) -> None:
        self._group = group
        self._expected: deque[tuple[distributed.Work, torch.Tensor]] = deque()
        """First messages of the coming steps."""
        self._description = b""
        self._contents: list[Content] = []
        self._draining: threading.Thread | None = None
        self.is_open = False
        """A pass has begun, and its end has not been received."""

    def begin(self) -> None:
        self._finish_draining()
        self.is_open = True
        while len(self._expected) < AHEAD:  # before the first pass
            self._expect(0)

    def receive(self) -> Arrival | None:
        """The next part, announced and on its way; None at the end. TrainingError when rank 0 failed or left."""
        header, message = self._header()
        if header.kind is Kind.BATCH:
            return self._arrival(header, message)
        self.is_open = False
        body = self._body(header, message)
        if header.kind is Kind.END:
            return None
        if header.kind is Kind.LEFT:
            raise TrainingError(
                "rank 0, which reads the data for all ranks, left its loop over this loader, while this rank goes on. "
                "Leave the loop on all ranks at the same step: decide on one rank and tell the others "
                "(accelerator.set_trigger and check_trigger)."
            )
        raise AnotherRankFailed(
            f"rank 0 failed while it read the data for all ranks:\n{text_in(body, 0, body.numel()).decode()}"
        )

    def leave(self) -> None:
        """Take what rank 0 still sends in this pass, in a thread, so that nobody waits for this rank."""
        if self.is_open and self._draining is None:
            self._draining = threading.Thread(target=self._drain, name="accel_nb-leaves-loader", daemon=True)
            self._draining.start()

    def _drain(self) -> None:
        try:
            while self.is_open:
                header, message = self._header()
                if header.kind is Kind.BATCH:
                    self._arrival(header, message).wait()
                else:
                    self._body(header, message)
                    self.is_open = False
        except (RuntimeError, TrainingError):  # the group is gone, and what was to be drained with it
            self.is_open = False

    def _finish_draining(self) -> None:
        if self._draining is not None:
            self._draining.join()
            self._draining = None

    def _expect(self, inline_bytes: int) -> None:
        message = torch.empty(header_bytes(self._group.size()) + inline_bytes, dtype=torch.uint8)
        self._expected.append((self._start(message, _FIRST), message))

    def _header(self) -> tuple[Header, torch.Tensor]:
        work, message = self._expected.popleft()
        _wait(work)
        num_bytes = header_bytes(self._group.size())
        header = Header.from_bytes(text_in(message, 0, num_bytes))
        self._expect(header.inline_bytes_ahead)
        return header, message[num_bytes:]

    def _body(self, header: Header, inline: torch.Tensor) -> torch.Tensor:
        """What came behind the header, or comes in a second message."""
        if header.body_bytes <= inline.numel():
            return inline[: header.body_bytes]
        body = torch.empty(header.body_bytes, dtype=torch.uint8)
        _wait(self._start(body, _FURTHER))
        return body

    def _arrival(self, header: Header, message: torch.Tensor) -> Arrival:
        body = self._body(header, message)
        if header.description_bytes:
            self._description = text_in(body, 0, header.description_bytes)
            self._contents = contents_of(self._description)
        received: list[torch.Tensor] = []
        pending: list[distributed.Work] = []
        position = header.description_bytes
        for content in self._contents:
            flat = torch.empty(content.num_bytes, dtype=torch.uint8)
            if content.is_large:
                pending.append(self._start(flat, _FURTHER))
            else:
                flat.copy_(body[position : position + content.num_bytes])
                position += content.num_bytes
            received.append(flat)
        return Arrival(self._description, self._contents, received, pending, header.rows)

    def _start(self, message: torch.Tensor, tag: int) -> distributed.Work:
        work = distributed.irecv(message, 0, group=self._group, tag=tag)
        assert work is not None  # only for ranks outside the group
        return work


class Pass(Iterator[Data]):
    """One rank's parts of one pass, and the rows of the newest step."""

    rows: Rows | None = None
    is_superseded = False

    @abstractmethod
    def leave(self) -> None:
        """No more parts are wanted here. Does nothing at the end of the pass."""

    def _check(self) -> None:
        if self.is_superseded:
            raise TrainingError(
                "this loop over a dispatched loader cannot go on: another loop over the same loader has begun. Prepare "
                "one loader for each of two loops that run at the same time."
            )


class _Serving(Pass):
    """Rank 0's."""

    def __init__(self, steps: Iterator[Step], outlets: Sequence[Outlet]) -> None:
        self._served = _serve(steps, outlets)

    def __next__(self) -> Data:
        self._check()
        part, self.rows = next(self._served)
        return part

    def leave(self) -> None:
        self._served.close()


class _Receiving(Pass):
    """Another rank's: gives `Arrival`s."""

    def __init__(self, inlet: Inlet) -> None:
        self._inlet = inlet
        self._has_begun = False

    def __next__(self) -> Arrival:
        self._check()
        if not self._has_begun:
            self._has_begun = True
            self._inlet.begin()
        arrival = self._inlet.receive() if self._inlet.is_open else None
        if arrival is None:
            raise StopIteration
        self.rows = arrival.rows
        return arrival

    def leave(self) -> None:
        if not self.is_superseded:
            self._inlet.leave()


class Scatter:
    """All that one loader needs to send batches from rank 0 to the others. Every rank must make it, at the same place,
    and begin every pass.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._newest: Pass | None = None
        self._open()

    def begin(self, steps: Iterator[Step]) -> Pass:
        """A pass. `steps` are looked at on rank 0 only. A pass that is not over is left."""
        if self._newest is not None:
            self._newest.leave()
            self._newest.is_superseded = True
        if distributed.group.WORLD is not self._world:  # closed and opened again since
            self._open()
        self._newest = _Serving(steps, self._outlets) if self._rank == 0 else _Receiving(self._inlet)
        return self._newest

    def _open(self) -> None:
        self._world = distributed.group.WORLD
        group = distributed.new_group(backend="gloo")
        self._outlets = [Outlet(group, rank) for rank in range(1, group.size())]
        self._inlet = Inlet(group)


def _serve(steps: Iterator[Step], outlets: Sequence[Outlet]) -> Generator[tuple[Data, Rows]]:
    """Rank 0's own parts of `steps`, with the rows of each step, while the other ranks are sent theirs.

    They are told how it ends, also when this generator is closed or `steps` raises, which it then does here too.
    """
    for outlet in outlets:
        outlet.is_open = True
    try:
        for step in steps:
            rows = Rows.of(step)
            for outlet, part in zip(outlets, step.parts[1:], strict=True):
                if part is NOTHING:
                    outlet.finish(Kind.END)
                else:
                    outlet.send(part, rows)
            yield step.parts[0], rows  # rank 0's is the last to be missing
        for outlet in outlets:
            outlet.finish(Kind.END)
        for outlet in outlets:
            outlet.wait()
    except GeneratorExit:
        _tell(outlets, Kind.LEFT)
        raise
    except BaseException:
        _tell(outlets, Kind.FAILED, traceback.format_exc())
        raise


def _tell(outlets: Sequence[Outlet], kind: Kind, text: str = "") -> None:
    """Tell whoever can still be told that this pass is over before its end."""
    for outlet in outlets:
        try:
            outlet.finish(kind, text)
            if kind is Kind.FAILED:  # this process may end next
                outlet.wait(FAREWELL_S)
        except (RuntimeError, ValueError, TrainingError):
            continue  # rank or group is gone; what failed here is told by the exception that is on its way


def _wait(work: distributed.Work) -> Any:  # noqa: ANN401  torch says so
    try:
        return work.wait()
    except RuntimeError as error:
        raise AnotherRankFailed(f"rank 0, which reads the data for all ranks, is gone: {error}") from error
