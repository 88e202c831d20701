"""Rows of a batch: how many it has, some of them, and several batches' joined. On this rank alone.

What belongs to the rows is cut and joined: tensors and NumPy arrays with as many entries along dimension 0 as the batch
has rows, and lists (or tuples) with one item per row, of strings, numbers or tensors of unequal shapes. All else is the
whole batch's, so that each part of it gets it: 0-d tensors, strings, numbers, None, objects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

import torch

from ..operations.nested import Data, children, is_container, is_namedtuple, leaves, map_children

Place = tuple[Data, ...]
"""Keys, positions and field names that lead to a part of a batch."""
RowLists = frozenset[Place] | None
"""Places of the lists with one item per row. None: not known."""


class CannotJoin(Exception):
    """Batches that have no common shape, such as texts padded to different lengths."""


def count_rows(batch: Data, usual: int | None = None) -> int | None:
    """Rows of `batch`; None when nothing in it has any, so that it cannot be cut.

    `usual`: rows of the loader's full batches. It decides where a list could be read both ways, as fields with one
    entry per row or as rows.
    """
    return _likely_count(batch, usual, of_tensors=True) or _likely_count(batch, usual, of_tensors=False)


class RowCounter:
    """Counts the rows of one loader's batches, one after the other.

    A full batch shows where its rows are, and there the rows of those after it are counted. By itself a short one can
    be read in several ways: a list of one tensor may be a sample of any length, or a field with one entry per row. So
    where a pass has less samples than a batch, `usual` is their number. Where it is not known, as for a stream without
    a length, tensors of equal length are fields, as torch's own collate function makes them, and so are as many tensors
    as rows.

    `usual`: as for `count_rows`.
    """

    def __init__(self, usual: int | None) -> None:
        self._usual = usual
        self._place: Place | None = None
        """What has one entry per row; None: no full batch has come yet."""
        self._is_sure = False
        """The last full batch could not be read in another way."""
        self.row_lists: RowLists = None
        """The lists with one item per row; None: no full batch has come yet."""

    def __call__(self, batch: Data) -> int | None:
        """Rows of `batch`; None when nothing in it has any."""
        num_rows = None if self._place is None else _num_entries(_at(batch, self._place))
        if num_rows is not None and (self._is_sure or num_rows < (self._usual or 0)):
            return num_rows
        num_rows = count_rows(batch, self._usual)
        if num_rows is not None and num_rows == self._usual:
            self._learn(batch, num_rows)
        return num_rows

    def _learn(self, batch: Data, num_rows: int) -> None:
        places = list(_places(batch, num_rows, self.row_lists or frozenset()))
        with_arrays = (place for place in places if _has_arrays([_at(batch, place)]))
        self._place = next(with_arrays, places[0] if places else None)
        # As many fields as rows are not told from rows, until samples come that differ in length.
        self._is_sure = not any(
            _is_list(outer) and len(outer) == num_rows
            for place in places
            for outer in (_at(batch, place[:depth]) for depth in range(len(place)))
        )
        lists = frozenset(place for place in places if _is_list(_at(batch, place)))
        self.row_lists = lists | (self.row_lists or frozenset())


def cut(batch: Data, start: int, stop: int, num_rows: int, row_lists: RowLists = None, place: Place = ()) -> Data:
    """Rows `start` to `stop` of `batch`, which has `num_rows`. Tensors are views.

    `row_lists`: the `RowCounter`'s. `place`: where in the batch this is.
    """
    if _is_array(batch):
        return batch[start:stop] if _length(batch) == num_rows else batch
    if _is_list(batch) and _hold_rows([batch], [num_rows], row_lists, place):
        return type(batch)(batch[start:stop])
    return _rebuilt([batch], lambda key, parts: cut(parts[0], start, stop, num_rows, row_lists, (*place, key)))


def join(batches: Sequence[Data], num_rows: Sequence[int], row_lists: RowLists = None, place: Place = ()) -> Data:
    """The rows of all `batches`, which have `num_rows` each. What belongs to no row is the first batch's.

    CannotJoin when their structures, dtypes or shapes differ. `row_lists` and `place`: as for `cut`.
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    if any(type(one) is not type(first) and (is_container(one) or _is_array(one)) for one in batches):
        raise CannotJoin
    if _is_array(first):
        return _joined_arrays(batches, num_rows)
    if _is_list(first) and _hold_rows(batches, num_rows, row_lists, place):
        return type(first)(item for one in batches for item in one)
    return _rebuilt(batches, lambda key, parts: join(parts, num_rows, row_lists, (*place, key)))


def _likely_count(batch: Data, usual: int | None, *, of_tensors: bool) -> int | None:
    candidates = list(_counts(batch, usual, of_tensors=of_tensors))
    return usual if usual in candidates else next(iter(candidates), None)


def _counts(data: Data, usual: int | None, *, of_tensors: bool) -> Iterator[int]:
    """Candidates for the number of rows, the most likely first."""
    if _is_array(data):
        length = _length(data)
        if of_tensors and length is not None:
            yield length
    elif _is_list(data):
        yield from _counts_of_list(data, usual, of_tensors=of_tensors)
    elif is_container(data):
        for _, child in children(data):
            yield from _counts(child, usual, of_tensors=of_tensors)


def _counts_of_list(data: Sequence[Data], usual: int | None, *, of_tensors: bool) -> Iterator[int]:
    if _has_arrays(data) != of_tensors:
        return
    inner = [next(_counts(item, usual, of_tensors=of_tensors), None) for item in data]
    lengths = {length for length in inner if length is not None}
    if of_tensors:
        if len(data) == usual:
            holds_rows = lengths != {usual} and (len(lengths) > 1 or _are_alike(data))
        else:
            holds_rows = len(lengths) > 1 and _are_alike(data)
        if holds_rows:
            yield len(data)
        yield from (length for length in inner if length is not None)
    elif len(data) != usual and lengths == {usual} and None not in inner:
        yield from lengths
    else:
        yield len(data)


def _holds_rows(items: Sequence[Data], num_rows: int) -> bool:
    """Whether a list has one item per row, rather than fields with one entry per row."""
    if len(items) != num_rows:
        return False
    inner = {next(_counts(item, num_rows, of_tensors=True), None) for item in items}
    return inner != {num_rows} or not _has_arrays(items)


def _hold_rows(
    lists: Sequence[Sequence[Data]], num_rows: Sequence[int], row_lists: RowLists, place: Place
) -> bool:  # fmt: skip
    """The same of lists of several batches, at one `place`: where no full batch has told, it is enough that one of them
    cannot be read otherwise.
    """
    if any(len(one) != rows for one, rows in zip(lists, num_rows, strict=True)):
        return False
    return any(map(_holds_rows, lists, num_rows)) if row_lists is None else place in row_lists


def _are_alike(items: Sequence[Data]) -> bool:
    """Whether `items` may be samples: tensors that differ in their length alone, such as one of boxes per image, or
    containers with the same keys.
    """
    kinds = {_kind(one) for one in items}
    return len(kinds) == 1 and None not in kinds


def _kind(item: Data) -> object:
    if isinstance(item, torch.Tensor):
        return (item.dtype, item.shape[1:]) if item.dim() else None
    return (type(item), frozenset(key for key, _ in children(item))) if is_container(item) else None


def _places(data: Data, num_rows: int, row_lists: frozenset[Place], place: Place = ()) -> Iterator[Place]:
    """Where there is one entry for each of the `num_rows`, outermost. `row_lists`: known to be such."""
    if _is_array(data):
        if _length(data) == num_rows:
            yield place
    elif _is_list(data) and len(data) == num_rows and (place in row_lists or _holds_rows(data, num_rows)):
        yield place
    elif is_container(data):
        for key, child in children(data):
            yield from _places(child, num_rows, row_lists, (*place, key))


def _at(data: Data, place: Place) -> Data:
    """What is at `place` in `data`; None when nothing is."""
    for key in place:
        data = dict(children(data)).get(key) if is_container(data) else None
    return data


def _has_arrays(items: Sequence[Data]) -> bool:
    return any(_is_array(leaf) for leaf in leaves(items))


def _joined_arrays(arrays: Sequence[Data], num_rows: Sequence[int]) -> Data:
    first = arrays[0]
    if any(_length(one) != rows for one, rows in zip(arrays, num_rows, strict=True)):
        if all(one.shape == first.shape for one in arrays):
            return first
        raise CannotJoin
    if any(one.shape[1:] != first.shape[1:] or one.dtype != first.dtype for one in arrays):
        raise CannotJoin
    if isinstance(first, torch.Tensor):
        if any(one.device != first.device or one.layout != first.layout for one in arrays):
            raise CannotJoin
        return torch.cat(list(arrays))
    return sys.modules["numpy"].concatenate(arrays)


def _rebuilt(batches: Sequence[Data], function: Callable[[Data, list[Data]], Data]) -> Data:
    """A container like the first of `batches`, each field made by `function` from its key and that field of all of
    them. What is no container comes back as it is.
    """
    if not is_container(batches[0]):
        return batches[0]
    fields = [dict(children(one)) for one in batches]
    if any(one.keys() != fields[0].keys() for one in fields):
        raise CannotJoin
    made = iter([function(key, [one[key] for one in fields]) for key in fields[0]])
    return map_children(lambda _: next(made), batches[0])


def _is_list(data: Data) -> bool:
    return isinstance(data, list | tuple) and not is_namedtuple(data)


def _is_array(data: Data) -> bool:
    if isinstance(data, torch.Tensor):
        return True
    numpy = sys.modules.get("numpy")  # not imported: nothing can be an array of it
    return numpy is not None and isinstance(data, numpy.ndarray)


def _num_entries(data: Data) -> int | None:
    if _is_array(data):
        return _length(data)
    return len(data) if _is_list(data) else None


def _length(array: Data) -> int | None:
    return array.shape[0] if array.ndim else None
