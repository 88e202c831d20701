from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, product

import pytest

from accel_nb.training.data.sharding import Share, Sharing, num_shares, share_batches, split_bounds

from .grid import GRID, LENGTHS, num_kept, source


def shares_of_ranks(
    batches: list[list[int]], num_ranks: int, batch_size: int | None, *, drop_last: bool = False, split: bool = False,
    even: bool = True,
) -> list[list[Share[int]]]:  # fmt: skip
    return [
        list(
            share_batches(
                batches,
                Sharing(
                    num_ranks=num_ranks,
                    rank=rank,
                    batch_size=batch_size,
                    drop_last=drop_last,
                    split=split,
                    even=even,
                ),
            )
        )
        for rank in range(num_ranks)
    ]


def in_gathered_order(ranks: list[list[Share[int]]]) -> list[int]:
    """What gathering every step gives after the samples that only fill it are cut off."""
    seen: list[int] = []
    for step in range(max(map(len, ranks))):
        shares = [shares[step] for shares in ranks if step < len(shares)]
        seen += list(chain.from_iterable(share.samples for share in shares))[: shares[0].num_genuine]
    return seen


@pytest.mark.parametrize(("batch_size", "num_ranks", "even", "drop_last", "split"), GRID)
def test_d01_each_sample_belongs_to_one_rank_once_and_in_order(
    batch_size: int, num_ranks: int, even: bool, drop_last: bool, split: bool
) -> None:
    for length in LENGTHS:
        batches = source(length, batch_size, drop_last=drop_last)

        ranks = shares_of_ranks(batches, num_ranks, batch_size, drop_last=drop_last, split=split, even=even)

        kept = num_kept(length, batch_size, num_ranks, drop_last=drop_last, split=split)
        assert in_gathered_order(ranks) == list(range(kept)), length
        assert all(share.samples for shares in ranks for share in shares), length


@pytest.mark.parametrize(
    ("batch_size", "num_ranks", "drop_last", "split"), sorted({(b, r, d, s) for b, r, _, d, s in GRID})
)
def test_d01_even_shares_are_all_of_one_size_on_all_ranks(
    batch_size: int, num_ranks: int, drop_last: bool, split: bool
) -> None:
    part_size = batch_size // num_ranks if split else batch_size
    for length in range(41):
        batches = source(length, batch_size, drop_last=drop_last)

        ranks = shares_of_ranks(batches, num_ranks, batch_size, drop_last=drop_last, split=split)

        assert len({len(shares) for shares in ranks}) == 1, length
        assert {len(share.samples) for shares in ranks for share in shares} <= {part_size}, length


@pytest.mark.parametrize(("batch_size", "num_ranks", "even", "drop_last", "split"), GRID)
def test_d09_the_announced_number_of_shares_is_the_number_read(
    batch_size: int, num_ranks: int, even: bool, drop_last: bool, split: bool
) -> None:
    for length, rank in product(range(41), range(num_ranks)):
        batches = source(length, batch_size, drop_last=drop_last)
        how = Sharing(
            num_ranks=num_ranks, rank=rank, batch_size=batch_size, drop_last=drop_last, split=split, even=even
        )

        announced = num_shares(len(batches), how, last_batch_size=len(batches[-1]) if batches else None)

        assert announced == len(list(share_batches(batches, how))), (length, rank)


def test_last_step_is_filled_by_wrapping_around() -> None:
    ranks = shares_of_ranks(source(5, 2), 2, 2)

    assert [[share.samples for share in shares] for shares in ranks] == [[[0, 1], [4, 0]], [[2, 3], [1, 2]]]
    assert ranks[0][-1].num_genuine == 1


def test_a_source_smaller_than_one_step_is_repeated() -> None:
    ranks = shares_of_ranks(source(1, 4), 2, 4)

    assert [shares[0].samples for shares in ranks] == [[0, 0, 0, 0], [0, 0, 0, 0]]


def test_uneven_shares_leave_ranks_without_a_batch() -> None:
    ranks = shares_of_ranks(source(5, 2), 2, 2, even=False)

    assert [[share.samples for share in shares] for shares in ranks] == [[[0, 1], [4]], [[2, 3]]]


def test_d02_an_even_division_drops_and_repeats_nothing() -> None:
    ranks = shares_of_ranks(source(512, 16), 2, 16)

    assert Counter(sample for shares in ranks for share in shares for sample in share.samples) == Counter(range(512))
    assert {len(shares) for shares in ranks} == {16}


def test_batches_of_differing_size_are_dealt_out_whole() -> None:
    batches = [[0], [1, 2], [3, 4, 5], [6], [7, 8]]

    ranks = shares_of_ranks(batches, 2, None)

    assert [[share.samples for share in shares] for shares in ranks] == [[[0], [3, 4, 5], [7, 8]], [[1, 2], [6], [0]]]
    assert [share.num_genuine for share in ranks[0]] == [3, 4, 2]


def test_a_short_batch_in_the_middle_is_read_where_it_is() -> None:
    batches = [[0, 1], [2], [3, 4], [5, 6]]

    ranks = shares_of_ranks(batches, 2, 2)

    assert [[share.samples for share in shares] for shares in ranks] == [[[0, 1], [3, 4]], [[2], [5, 6]]]


def test_reads_no_further_than_it_gives() -> None:
    read: list[int] = []

    def batches() -> Iterator[list[int]]:
        for start in range(0, 8, 2):
            read.append(start)
            yield [start, start + 1]

    first = next(share_batches(batches(), Sharing(num_ranks=2, rank=0, batch_size=2)))

    assert first.samples == [0, 1]
    assert read == [0, 2]


def test_d13_a_batch_that_cannot_be_split_names_the_nearest_sizes() -> None:
    with pytest.raises(ValueError, match=r"batch_size=7 is no round multiple of 3\. Use 6 or 9\."):
        Sharing(num_ranks=3, rank=0, batch_size=7, split=True)
    with pytest.raises(ValueError, match=r"batch_size=2 is no round multiple of 3\. Use 3\."):
        Sharing(num_ranks=3, rank=0, batch_size=2, split=True)
    with pytest.raises(ValueError, match="has no `batch_size`"):
        Sharing(num_ranks=3, rank=0, batch_size=None, split=True)


def test_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rank=2 is not one of 2 ranks \(0 to 1\)"):
        Sharing(num_ranks=2, rank=2, batch_size=1)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
def test_contiguous_parts_cover_everything_and_differ_by_one_at_most(num_ranks: int) -> None:
    for length in range(20):
        parts = [range(*split_bounds(length, num_ranks, rank)) for rank in range(num_ranks)]

        assert list(chain.from_iterable(parts)) == list(range(length))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert sorted(map(len, parts), reverse=True) == list(map(len, parts))
