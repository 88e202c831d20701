"""The ledger: one shared page per run and host on which each rank notes what it does with the others, and where.

    rank 0 ──writes──▶ ┌────────┐ ◀──writes── rank 1
                       │ ledger │
     keeper ──reads──▶ └────────┘ ◀──each rank reads its peers

A rank writes into its own block only, without a lock and without waiting for anybody: a note costs about a microsecond.
Whoever reads may catch a note while it is written: see `LedgerPage.call`. All numbers are aligned 64-bit words, which
the hardware stores whole (``struct.pack_into`` would clear them first).

A *call* is one operation of all ranks: numbered, so that the n-th of one rank belongs to the n-th of another. An
*activity* is what a rank does on its own and what others may have to wait for: a backward pass, the next batch. What
other threads than the function's call is counted, and gets no number: see `LedgerPage.are_aligned`.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import msgspec

NUM_CALLS = 16
"""Newest calls that are kept per rank."""
GENERATION_BITS = 40
"""A call's number is ``generation << GENERATION_BITS | how many of that generation``. A generation begins when a
default process group is opened, and another one when it is closed.
"""

_WORD = 8
_TEXT_BYTES = 32 << 10
"""Room for a rank's texts. When it is full they begin anew: a text read meanwhile may be wrong, no number is."""
_LONGEST_TEXT = 4 << 10

# What the words of a rank's header, and of each of its calls, hold.
(
    _NUMBER, _LIFE, _ACTIVITY, _ACTIVITY_PLACE, _ACTIVITY_SINCE, _STEPS, _STEP_ENDED, _OWN, _INPUT, _BATCH_SIZE,
    _NUMBER_BEFORE, _REPORTED, _OPENED_GROUP, _ELSEWHERE, _ELSEWHERE_OPERATION, _ELSEWHERE_PLACE, _ELSEWHERE_SINCE,
) = range(17)  # fmt: skip
_HEADER_WORDS = 24
_CALL_NUMBER, _SIGNATURE, _OPERATION, _GIVEN, _PLACE, _BEGUN, _ENDED, _CALL_ELSEWHERE = range(8)
_CALL_WORDS = 8
_BLOCK_BYTES = (_HEADER_WORDS + NUM_CALLS * _CALL_WORDS) * _WORD + _TEXT_BYTES
_LINE_BITS = 24
_CARRIED_OUT_BY = {"accel_nb.utils.wait_for_everyone": "torch.distributed.barrier"}
"""Operations that are nothing else than another one: ranks may call either."""
_MOST_NOTES = 4096
"""Kept by a rank: programs whose shapes or lines never repeat must not grow."""

RUNNING, RETURNED, FAILED, ENDED = 1, 2, 3, 4
"""`RankNotes.life`: the function runs, has returned, has raised; it has returned, and nothing else of the user's runs
any more, neither a thread nor what was registered with atexit. 0: it has not begun.
"""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of all ranks, as one of them called it."""

    number: int
    signature: int
    """Equal on two ranks when `operation` and `given` are; 0 when there is nothing to compare."""
    operation: str
    """Its dotted name."""
    given: str
    """Structure, shapes and dtypes of what was given to it."""
    file: str
    """Of the user's line; empty when it is not known."""
    line: int
    begun_ns: int
    """By the monotonic clock, which all processes of a host share."""
    ended_ns: int
    """0: the rank is still inside."""
    num_elsewhere: int = 0
    """How many operations other threads had begun when it began; only calls with the same belong together."""


class RankNotes(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank has noted, at one moment."""

    rank: int
    life: int
    number: int
    """Of the newest call; 0: none yet."""
    number_before: int = 0
    """As `LedgerPage.number_before`."""
    call: Call | None
    """The newest; None when there is none, or it was overwritten while it was read."""
    activity: str
    """Empty: none."""
    activity_file: str
    activity_line: int
    activity_since_ns: int
    num_steps: int
    """Optimizer steps so far."""
    step_ended_ns: int
    """When the newest ended; 0: there was none."""
    own_ns: int
    """Sum, over all steps, of the time in which the rank was neither inside a call nor in its backward pass."""
    input_ns: int
    """The part of `own_ns` spent waiting for batches."""
    batch_size: int
    """That a search for a fitting batch size tries now; 0: none."""
    num_elsewhere: int = 0
    """Operations of the default group that other threads have begun; counted and written like `number`."""
    elsewhere: str = ""
    """The newest of these, while a thread is inside of it; empty: none is."""
    elsewhere_file: str = ""
    elsewhere_line: int = 0
    elsewhere_since_ns: int = 0


def _within(count: int, number: int) -> int:
    """`count`, if it is of the generation that call `number` is of; else 0."""
    return count if count >> GENERATION_BITS == number >> GENERATION_BITS else 0


class LedgerPage:
    """The whole page, to be read. Made by the keeper before its ranks, which inherit it."""

    def __init__(self, num_ranks: int, fd: int | None = None, *, is_whole: bool = True) -> None:
        """`fd`: of an existing page's memory file, for a process that did not inherit it; stays the caller's."""
        self.num_ranks = num_ranks
        self.is_whole = is_whole
        """Whether all ranks of the run write here: those on other machines, or of other keepers, cannot."""
        size = num_ranks * _BLOCK_BYTES
        self.fd = os.memfd_create("ledger") if fd is None else fd
        """Of the memory file. The maker may close it: the page lives on in those who have mapped it."""
        if fd is None:
            os.ftruncate(self.fd, size)
        self._map = mmap.mmap(self.fd, size)
        self.words = memoryview(self._map).cast("Q")
        self._text_at = (_HEADER_WORDS + NUM_CALLS * _CALL_WORDS) * _WORD

    def number(self, rank: int) -> int:
        """Of `rank`'s newest call; 0: none yet."""
        return self.words[self.base(rank) + _NUMBER]

    def number_before(self, rank: int) -> int:
        """Of `rank`'s last call before its present generation; 0: it made none."""
        return self.words[self.base(rank) + _NUMBER_BEFORE]

    def life(self, rank: int) -> int:
        return self.words[self.base(rank) + _LIFE]

    def has_opened_group(self, rank: int) -> bool:
        """As `RankLedger.note_opened_group`."""
        return bool(self.words[self.base(rank) + _OPENED_GROUP])

    def are_aligned(self, generation: int) -> bool:
        """Whether the calls of one number belong together. They need not while other threads have begun more operations
        of the default group on one rank than on another: one of those may belong to a numbered call.
        """
        return len({self._elsewhere(rank, generation) for rank in range(self.num_ranks)}) <= 1

    def _elsewhere(self, rank: int, generation: int) -> int:
        word = self.words[self.base(rank) + _ELSEWHERE]
        return word if word >> GENERATION_BITS == generation else 0

    def signature(self, rank: int, number: int) -> int | None:
        """Of `rank`'s call `number`; None when it is not kept any more, or not there yet."""
        at = self._call_at(rank, number)
        before, signature = self.words[at + _CALL_NUMBER], self.words[at + _SIGNATURE]
        return signature if before == number == self.words[at + _CALL_NUMBER] else None

    def elsewhere_at(self, rank: int, number: int) -> int:
        """How many operations `rank`'s other threads had begun when its call `number` began; of a call that is kept."""
        return _within(self.words[self._call_at(rank, number) + _CALL_ELSEWHERE], number)

    def call(self, rank: int, number: int) -> Call | None:
        """`rank`'s call `number`; None when it is not kept any more, or just being overwritten."""
        at = self._call_at(rank, number)
        words = list(self.words[at : at + _CALL_WORDS])
        place, place_line = self._place(rank, words[_PLACE])
        call = Call(
            number=number, signature=words[_SIGNATURE], operation=self._text(rank, words[_OPERATION]),
            given=self._text(rank, words[_GIVEN]), file=place, line=place_line, begun_ns=words[_BEGUN],
            ended_ns=words[_ENDED], num_elsewhere=_within(words[_CALL_ELSEWHERE], number),
        )  # fmt: skip
        return call if words[_CALL_NUMBER] == number == self.words[at + _CALL_NUMBER] else None

    def notes(self, rank: int) -> RankNotes:
        base = self.base(rank)
        words = list(self.words[base : base + _HEADER_WORDS])
        file, line = self._place(rank, words[_ACTIVITY_PLACE])
        busy, since_ns = words[_ACTIVITY_SINCE] > 0, words[_ELSEWHERE_SINCE]
        thread_file, thread_line = self._place(rank, words[_ELSEWHERE_PLACE]) if since_ns else ("", 0)
        return RankNotes(
            rank=rank, life=words[_LIFE], number=words[_NUMBER], number_before=words[_NUMBER_BEFORE],
            call=self.call(rank, words[_NUMBER]) if words[_NUMBER] else None,
            activity=self._text(rank, words[_ACTIVITY]) if busy else "", activity_file=file if busy else "",
            activity_line=line if busy else 0, activity_since_ns=words[_ACTIVITY_SINCE], num_steps=words[_STEPS],
            step_ended_ns=words[_STEP_ENDED], own_ns=words[_OWN], input_ns=words[_INPUT],
            batch_size=words[_BATCH_SIZE], num_elsewhere=words[_ELSEWHERE],
            elsewhere=self._text(rank, words[_ELSEWHERE_OPERATION]) if since_ns else "", elsewhere_file=thread_file,
            elsewhere_line=thread_line, elsewhere_since_ns=since_ns,
        )  # fmt: skip

    def fingerprint(self, rank: int) -> bytes:
        """Changes whenever the rank notes something. Much cheaper than `notes`."""
        base, at = self.base(rank), self._call_at(rank, self.number(rank))
        return self.words[base : base + _HEADER_WORDS].tobytes() + self.words[at : at + _CALL_WORDS].tobytes()

    def base(self, rank: int) -> int:
        """Index of the first word of `rank`'s block."""
        return rank * _BLOCK_BYTES // _WORD

    def _call_at(self, rank: int, number: int) -> int:
        return self.base(rank) + _HEADER_WORDS + number % NUM_CALLS * _CALL_WORDS

    def text_at(self, rank: int) -> int:
        """Offset of the first byte of `rank`'s texts."""
        return rank * _BLOCK_BYTES + self._text_at

    def store_text(self, at: int, text: bytes) -> None:
        self._map[at : at + len(text)] = text

    def _text(self, rank: int, reference: int) -> str:
        offset, length = reference >> 32, reference & 0xFFFFFFFF
        start = self.text_at(rank) + min(offset, _TEXT_BYTES)
        return self._map[start : start + min(length, _TEXT_BYTES - min(offset, _TEXT_BYTES))].decode(errors="replace")

    def _place(self, rank: int, place: int) -> tuple[str, int]:
        # Offset and length of the file's name in 40 bits: both are below 2**20.
        name = place >> _LINE_BITS
        return self._text(rank, name >> 20 << 32 | name & 0xFFFFF), place & (1 << _LINE_BITS) - 1


class RankLedger:
    """One rank's own block. Only the thread that runs the function may write, and no child of the rank's; other threads
    write by `elsewhere` alone.
    """

    def __init__(self, page: LedgerPage, rank: int) -> None:
        self.page = page
        self.rank = rank
        self.spans_run = False
        """Whether the default group holds all ranks of the page: only then do their calls belong together."""
        self.compares = True
        """Whether calls are to be compared with those of the others, before they are carried out."""
        self.inside = False
        """Whether a call has begun and not ended."""
        self.cell = 0
        """Number of the cell that a kept rank runs, alike on all of them; 0: it runs one function."""
        self._thread = threading.get_ident()
        self._words = page.words
        self._base = page.base(rank)
        self._number = 0
        self._new_text = threading.RLock()
        """Held while texts are added, which other threads may do, too."""
        self._texts: dict[str, int] = {}
        self._notes: dict[tuple[str, str, str, int, bool], array[int]] = {}
        """Operation, given, file, line, compared -> the words of such a call, without a number; kept like its texts."""
        first = self._base + _HEADER_WORDS
        self._slots = [slice(at, at + _CALL_WORDS) for at in range(first, first + NUM_CALLS * _CALL_WORDS, _CALL_WORDS)]
        self._text_end = 0
        self._began_waiting_ns = 0
        self._busy_ns = 0
        self._input_before_ns = 0

    @property
    def may_write(self) -> bool:
        """Whether the calling thread is the one that may."""
        return threading.get_ident() == self._thread

    def live(self, life: int) -> None:
        """Say that the function has begun, returned or failed, or that the rank ends."""
        self._words[self._base + _LIFE] = life

    def note_opened_group(self) -> None:
        """Once the rank has opened the default group that its launch was planned for."""
        self._words[self._base + _OPENED_GROUP] = 1

    def begin_generation(self, generation: int) -> None:
        """The process group was closed, or another one is opened: calls count from one again. `generation` grows."""
        self.spans_run = False
        if self._number & (1 << GENERATION_BITS) - 1:
            self._words[self._base + _NUMBER_BEFORE] = self._number
        self._number = generation << GENERATION_BITS
        self._words[self._base + _NUMBER] = self._number

    def begin(self, operation: str, given: str, file: str, line: int, *, compared: bool = True) -> int:
        """Note that a call begins; gives its number. `compared`: its ranks must give the same."""
        note = self._notes.get((operation, given, file, line, compared))
        if note is None:
            note = self._new_note(operation, given, file, line, compared=compared)
        self._number = number = self._number + 1
        words, base, slot = self._words, self._base, self._slots[number % NUM_CALLS]
        note[_BEGUN] = self._began_waiting_ns = time.monotonic_ns()
        note[_CALL_ELSEWHERE] = words[base + _ELSEWHERE]
        # Without a number while the rest is written, so that who reads it meanwhile finds out.
        words[slot.start] = 0
        words[slot] = note
        words[slot.start] = number
        words[base + _NUMBER] = number
        self.inside = True
        return number

    def end(self, number: int) -> None:
        """Note that call `number` is over, however it went."""
        self.inside = False
        now = time.monotonic_ns()
        self._busy_ns += now - self._began_waiting_ns
        at = self._base + _HEADER_WORDS + number % NUM_CALLS * _CALL_WORDS
        if self._words[at + _CALL_NUMBER] == number:
            self._words[at + _ENDED] = now

    def is_first_to_report(self, number: int) -> bool:
        """Whether no rank has reported yet that call `number` differs; from now on this one has. Two ranks that ask
        within the same microsecond may both be the first.
        """
        words, page = self._words, self.page
        if any(words[page.base(rank) + _REPORTED] == number for rank in range(page.num_ranks)):
            return False
        words[self._base + _REPORTED] = number
        return True

    def withdraw(self, number: int) -> None:
        """Call `number`, the newest, has ended before it took place, and the others know nothing of it: the next one
        gets its number.
        """
        self._words[self._base + _HEADER_WORDS + number % NUM_CALLS * _CALL_WORDS + _CALL_NUMBER] = 0
        self._number = number - 1
        self._words[self._base + _NUMBER] = self._number

    @contextmanager
    def activity(self, name: str, file: str = "", line: int = 0, *, counts_as_own: bool = False) -> Iterator[None]:
        """While inside, the rank does `name`. `counts_as_own`: it slows the step down, as waiting for a batch does;
        else, as a backward pass, it ends when the slowest rank has ended it.
        """
        words, base = self._words, self._base
        outer = words[base + _ACTIVITY], words[base + _ACTIVITY_PLACE], words[base + _ACTIVITY_SINCE]
        with self._new_text:
            self._make_room()
            words[base + _ACTIVITY] = self._kept(name)
            words[base + _ACTIVITY_PLACE] = self._placed(file, line)
        words[base + _ACTIVITY_SINCE] = begun = time.monotonic_ns()
        busy_before_ns = self._busy_ns
        try:
            yield
        finally:
            took = time.monotonic_ns() - begun
            if counts_as_own:
                # Less what it waited for the others meanwhile.
                words[base + _INPUT] += max(0, took - (self._busy_ns - busy_before_ns))
            elif not outer[2]:
                self._busy_ns = busy_before_ns + took
            words[base + _ACTIVITY_SINCE] = outer[2]
            words[base + _ACTIVITY], words[base + _ACTIVITY_PLACE] = outer[0], outer[1]

    @contextmanager
    def elsewhere(self, operation: str, file: str, line: int) -> Iterator[None]:
        """While inside, the calling thread, not the function's, is in `operation` of the default group."""
        words, base = self._words, self._base
        with self._new_text:
            generation = self._number >> GENERATION_BITS << GENERATION_BITS
            own = words[base + _ELSEWHERE] = max(words[base + _ELSEWHERE], generation) + 1
            self._make_room()
            words[base + _ELSEWHERE_OPERATION] = self._kept(operation)
            words[base + _ELSEWHERE_PLACE] = self._placed(file, line)
            words[base + _ELSEWHERE_SINCE] = time.monotonic_ns()
        try:
            yield
        finally:
            with self._new_text:
                # Else another thread has begun one meanwhile.
                if words[base + _ELSEWHERE] == own:
                    words[base + _ELSEWHERE_SINCE] = 0

    def step(self) -> None:
        """Note that an optimizer step is over."""
        words, base = self._words, self._base
        now, before = time.monotonic_ns(), words[base + _STEP_ENDED]
        if before:
            words[base + _OWN] += max(0, now - before - self._busy_ns)
        else:
            # What came before the first step was no step.
            words[base + _INPUT] = 0
        self._busy_ns = 0
        words[base + _STEP_ENDED] = now
        words[base + _STEPS] += 1

    def try_batch_size(self, size: int) -> None:
        """Note the size that a search tries now; 0: the search is over."""
        self._words[self._base + _BATCH_SIZE] = size

    def _new_note(self, operation: str, given: str, file: str, line: int, *, compared: bool) -> array[int]:
        """What the words of such a call hold."""
        digest = blake2b(f"{_CARRIED_OUT_BY.get(operation, operation)}\0{given}".encode(), digest_size=8).digest()
        with self._new_text:
            self._make_room()
            note = array("Q", bytes(_CALL_WORDS * _WORD))
            note[_SIGNATURE] = int.from_bytes(digest) | 1 if compared else 0
            note[_OPERATION], note[_GIVEN] = self._kept(operation), self._kept(given)
            note[_PLACE] = self._placed(file, line)
            self._notes[operation, given, file, line, compared] = note
        return note

    def _make_room(self) -> None:
        """For the texts of one note: none of them may displace another. With `_new_text` held, until they are there."""
        if self._text_end > _TEXT_BYTES - 3 * _LONGEST_TEXT or len(self._notes) >= _MOST_NOTES:
            self._texts.clear()
            self._notes.clear()
            self._text_end = 0

    def _kept(self, text: str) -> int:
        """Where `text` is among this rank's texts; written there the first time. After `_make_room`."""
        reference = self._texts.get(text)
        if reference is None:
            data = text.encode(errors="replace")[:_LONGEST_TEXT]
            self.page.store_text(self.page.text_at(self.rank) + self._text_end, data)
            reference = self._texts[text] = self._text_end << 32 | len(data)
            self._text_end += len(data)
        return reference

    def _placed(self, file: str, line: int) -> int:
        reference = self._kept(file)
        name = reference >> 32 << 20 | reference & 0xFFFFF
        return name << _LINE_BITS | min(line, (1 << _LINE_BITS) - 1)


_own: RankLedger | None = None


def open_own(ledger: RankLedger | None) -> None:
    """Make `ledger` this process's own, but not its children's, who would write over its notes. None: it has none.

    Called once by the launcher, in the rank.
    """
    global _own  # noqa: PLW0603  one slot per process is the point
    _own = ledger
    if ledger is not None:
        os.register_at_fork(after_in_child=lambda: open_own(None))


def own() -> RankLedger | None:
    """This process's ledger; None outside a launch, where nobody reads it, and in children of a rank."""
    return _own
