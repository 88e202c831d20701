"""Where ranks are, as sentences: out of notes, and of stacks as faulthandler writes them."""

from __future__ import annotations

import sys
import weakref

import torch
from msgspec.structs import replace

from accel_nb.launch.keeper.frames import Frame, busy_frame, main_thread, own_frame
from accel_nb.launch.keeper.stacks import RankStacks
from accel_nb.launch.keeper.whereabouts import duration_text, sentence, what_lingers, whereabouts
from accel_nb.protocol.events import Whereabouts
from accel_nb.protocol.ledger import FAILED, RETURNED, RankNotes
from tests.launch.keeper.noted import S, call, doing, notes

TORCH = torch.__file__.removesuffix("/__init__.py")
THREADING = sys.modules["threading"].__file__
CELLS = {"<Cell In[3]>": "\n" * 6 + "gather(x)\n\n  for batch in loader:\n\n\n    while True: pass\n"}

IN_CELL = f"""Thread 0x00007f1 (most recent call first):
  File "{THREADING}", line 327 in wait
  File "{THREADING}", line 629 in wait

Current thread 0x00007f2 (most recent call first):
  File "{TORCH}/nn/functional.py", line 11 in relu
  File "<Cell In[3]>", line 12 in train
  File "/home/me/launcher.py", line 5 in wrapper
  File "<frozen runpy>", line 198 in _run_module_as_main
"""
READS = f"""Current thread 0x00007f2 (most recent call first):
  File "{TORCH}/utils/data/dataloader.py", line 1200 in _try_get_data
  File "<Cell In[3]>", line 9 in train
"""
IDLE_WORKER = f"""Current thread 0x00007f2 (most recent call first):
  File "{TORCH}/utils/data/_utils/worker.py", line 250 in _worker_loop
  File "<Cell In[3]>", line 9 in train
"""
BUSY_WORKER = f"""Current thread 0x00007f2 (most recent call first):
  File "<Cell In[2]>", line 4 in __getitem__
  File "{TORCH}/utils/data/_utils/fetch.py", line 54 in fetch
  File "{TORCH}/utils/data/_utils/worker.py", line 349 in _worker_loop
  File "<Cell In[3]>", line 9 in train
"""
WORKER_IN_LIBRARY = BUSY_WORKER.replace('"<Cell In[2]>", line 4 in __getitem__', f'"{THREADING}", line 3 in decode')


LEAVES = """Thread 0x00007f1 (most recent call first):
  File "<Cell In[3]>", line 9 in watch

Current thread 0x00007f2 (most recent call first):
  File "<Cell In[3]>", line 12 in at_exit
  File "/there/accel_nb/launch/rank/main.py", line 222 in _leave
  File "<Cell In[3]>", line 7 in launches
"""


def at(one: RankNotes, own: str = "", now_s: float = 31, **children: str) -> Whereabouts:
    stacks = RankStacks(own, {int(pid.removeprefix("pid")): text for pid, text in children.items()})
    return whereabouts(one, stacks, now_ns=round(now_s * S), cells=CELLS)


def test_the_users_line_is_the_innermost_of_a_cell_in_the_first_thread() -> None:
    frames = main_thread(IN_CELL)

    assert frames[1] == Frame("<Cell In[3]>", 12, "train")
    assert own_frame(frames) == frames[1]
    assert frames[1].place == "Cell In[3], line 12"
    assert frames[1].source(CELLS) == "while True: pass"


def test_a_line_of_a_file_is_read_from_disk() -> None:
    assert Frame(__file__, 1, "").source({}).startswith('"""Where ranks are')
    assert Frame("/nowhere.py", 1, "").source({}) == ""
    assert Frame("<Cell In[3]>", 99, "").source(CELLS) == ""


def test_a_stack_of_libraries_only_has_no_line_of_the_user() -> None:
    assert own_frame(main_thread(IN_CELL.split("Current", maxsplit=1)[0])) is None
    assert own_frame([]) is None


def test_a_worker_is_busy_above_its_loop() -> None:
    assert busy_frame(BUSY_WORKER) == Frame("<Cell In[2]>", 4, "__getitem__")
    assert busy_frame(IDLE_WORKER) is None, "what is below its loop is its rank's, of the moment when it was forked"
    assert busy_frame(WORKER_IN_LIBRARY) == Frame(str(THREADING), 3, "decode")
    assert busy_frame("") is None


def test_k02_one_waits_and_one_is_elsewhere() -> None:
    text = sentence([at(notes(0, call(2))), at(notes(1, call(1, ended_s=1)), IN_CELL)])

    assert text == (
        "rank 0 waits in gather (Cell In[3], line 7) for 31 s; rank 1 is at Cell In[3], line 12 (`while True: pass`)"
    )


def test_k02_one_waits_and_one_has_returned() -> None:
    text = sentence([at(notes(0, call(8), num_steps=7)), at(notes(1, life=RETURNED, num_steps=7))])

    assert text == "rank 0 waits in gather (Cell In[3], line 7) for 31 s; rank 1 has returned after 7 optimizer steps"


def test_k02_threads_that_the_function_waits_for_are_told() -> None:
    other = 'Thread 0x1 (most recent call first):\n  File "<Cell In[3]>", line {} in work\n\n'
    joins = f"""Current thread 0x2 (most recent call first):
  File "{THREADING}", line 1119 in join
  File "<Cell In[3]>", line 9 in train
"""

    assert sentence([at(notes(0), other.format(7) + other.format(12) + joins)]) == (
        "rank 0 is at Cell In[3], line 9 (`for batch in loader:`), another thread is at Cell In[3], line 7 "
        "(`gather(x)`), another thread is at Cell In[3], line 12 (`while True: pass`)"
    )
    assert at(notes(0), other.format(7) * 5 + joins).details[2:] == ("3 more threads of yours are there",)
    assert at(notes(0), other.format(7) + READS).details == ()


def test_k02_code_of_the_users_that_runs_in_a_backward_is_told() -> None:
    backward = doing(0, "backward", 1, activity_line=9)
    hook = f"""Current thread 0x2 (most recent call first):
  File "<Cell In[3]>", line 12 in hook
  File "{TORCH}/autograd/__init__.py", line 395 in backward
  File "<Cell In[3]>", line 9 in train
"""

    assert sentence([at(backward, hook)]) == (
        "rank 0 waits in backward (Cell In[3], line 9) for 30 s, in which it is at Cell In[3], line 12 "
        "(`while True: pass`)"
    )
    assert at(backward, hook.replace("line 12", "line 9")).details == ()


def test_the_odd_one_comes_first() -> None:
    ranks = [at(notes(rank, call(2))) for rank in range(8) if rank != 5]

    text = sentence([*ranks, at(notes(5), IN_CELL)])

    assert text == (
        "rank 5 is at Cell In[3], line 12 (`while True: pass`); ranks 0-4, 6-7 wait in gather (Cell In[3], line 7) "
        "for 31 s"
    )


def test_waits_in_different_turns_are_numbered() -> None:
    torchs = call(4, "torch.distributed.all_reduce", line=8)

    text = sentence([at(notes(0, call(3))), at(notes(1, torchs))])

    assert text == (
        "rank 0 waits in gather (Cell In[3], line 7), its operation 3 for 31 s; "
        "rank 1 waits in torch.distributed.all_reduce (Cell In[3], line 8), its operation 4 for 31 s"
    )


def test_a_wait_for_the_next_batch_names_the_workers_that_are_busy() -> None:
    waiting = doing(0, "next batch", 1)

    assert sentence([at(waiting, READS, pid11=IDLE_WORKER, pid12=BUSY_WORKER)]) == (
        "rank 0 waits for its next batch (Cell In[3], line 9) for 30 s, its worker 12 is at Cell In[2], line 4"
    )
    many = at(waiting, READS, pid1=BUSY_WORKER, pid2=BUSY_WORKER, pid3=BUSY_WORKER)
    assert many.details[2:] == ("1 more of its workers are busy",)
    alone = at(waiting, BUSY_WORKER)
    assert alone.details == ("it reads it itself, at Cell In[2], line 4",)
    assert at(waiting, READS).details == ()


def test_a_rank_at_a_loader_that_notes_nothing_names_its_workers_too() -> None:
    assert sentence([at(notes(0), READS, pid12=BUSY_WORKER)]) == (
        "rank 0 is at Cell In[3], line 9 (`for batch in loader:`), its worker 12 is at Cell In[2], line 4"
    )


def test_other_ends() -> None:
    ranks = [
        at(notes(0, life=FAILED)),
        replace(at(notes(1)), state="gone"),
        replace(at(notes(2)), details=("its process does not answer, state T (stopped)",)),
    ]

    assert sentence(ranks) == (
        "rank 0 has failed; rank 1 has ended; rank 2 does not say where it is, its process does not answer, state T "
        "(stopped)"
    )


def test_a_wait_whose_line_was_not_noted_has_that_of_its_stack() -> None:
    assert at(notes(0, call(2, file="")), IN_CELL).place == "Cell In[3], line 12"
    assert at(notes(0, call(2)), IN_CELL).stack.startswith("Thread 0x00007f1")


def test_long_waits_are_told_in_minutes() -> None:
    assert [duration_text(seconds) for seconds in (31.2, 119, 120, 245)] == ["31 s", "119 s", "2 min", "4 min"]


def test_what_keeps_a_rank_that_has_returned() -> None:
    handler = "its exit handler is at Cell In[3], line 12 (`while True: pass`)"
    waits = LEAVES.replace('"<Cell In[3]>", line 12 in at_exit', f'"{THREADING}", line 1590 in _shutdown')
    library = LEAVES.replace('"<Cell In[3]>", line 12 in at_exit', f'"{weakref.__file__}", line 667 in _exitfunc')
    native = LEAVES.replace('  File "<Cell In[3]>", line 12 in at_exit\n', "")

    assert what_lingers(RankStacks(LEAVES, {}), CELLS) == handler
    assert what_lingers(RankStacks(waits, {}), CELLS) == (
        "it waits for threads that are no daemons, another thread is at Cell In[3], line 9 (`for batch in loader:`)"
    )
    assert what_lingers(RankStacks(library, {}), CELLS).startswith("it is at weakref.py, line 667 (`")
    assert what_lingers(RankStacks(native, {}), CELLS) == "a thread that is no daemon, or an exit handler"
    assert sentence([at(notes(1, life=RETURNED), LEAVES)]) == f"rank 1 has returned, {handler}"
