"""ProcessorChain: the custom logits processors of a worker, and what they still have to be told."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..ipc.messages.config import EngineConfig
from ..ipc.messages.plans import NewRow
from .logits_processor import AddedRow, BatchUpdate, LogitsProcessor
from .processor_loading import load_processors
from .states import RowStates

_logger = logging.getLogger("ringpost")


class LogitsProcessorError(RuntimeError):
    """A custom logits processor raised, or returned what are no logits."""


class OutputIds(Sequence[int]):
    """The output of the request in a row so far. A live view: it means nothing once another request has the row."""

    def __init__(self, states: RowStates, row: int, prompt_length: int) -> None:
        self._states, self._row, self._start = states, row, prompt_length

    def __len__(self) -> int:
        return max(int(self._states.lengths[self._row]) - self._start, 0)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        found: int | list[int] = self._tokens()[index].tolist()
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self[:] == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _tokens(self) -> npt.NDArray[np.int32]:
        return self._states.tokens[self._row, self._start : self._start + len(self)]


@dataclass
class _Link:
    """One processor, and the rows that it has accepted: told as added, and did not raise."""

    processor: LogitsProcessor
    invariant: bool
    accepted: set[int] = field(default_factory=set)

    def tell(self, update: BatchUpdate | None) -> None:
        """Raises LogitsProcessorError."""
        _called(self.processor, self.processor.update_state, update)

    def forget(self, row: int) -> None:
        """Tell it, once, that a row's request is gone. An error of this concerns nobody who is still there."""
        self.accepted.remove(row)
        try:
            self.tell(BatchUpdate([row], []))
        except LogitsProcessorError:
            _logger.exception("a logits processor failed when it was told that the request in row %d is gone", row)

    def apply(self, logits: Tensor, rows: npt.NDArray[np.int64]) -> Tensor:
        """As the chain's."""
        return _checked(self.processor, _called(self.processor, self.processor.apply, logits, torch.from_numpy(rows)), logits)


class ProcessorChain:
    """Applies the processors in the order of their entries. Without any, every call returns at once."""

    def __init__(self, config: EngineConfig, states: RowStates) -> None:
        """Raises ValueError, naming the entry, for one that cannot be loaded or made."""
        made = [entry.make(config) for entry in load_processors(config.model.logits_processors)]
        self._links = [_Link(one, _called(one, one.is_argmax_invariant)) for one in made]
        self._states = states
        # Still to be told: rows whose request is gone, and requests by the row that they are in.
        self._removed: dict[int, None] = {}
        self._added: dict[int, AddedRow] = {}
        self._refused: dict[int, LogitsProcessorError] = {}  # rows that a processor would not take

    def __bool__(self) -> bool:
        return bool(self._links)

    def enter(self, new: NewRow) -> None:
        """A request has entered a row."""
        if self._links:
            self.leave(new.row)
            prompt, output = new.tokens[: new.prompt_length], OutputIds(self._states, new.row, new.prompt_length)
            self._added[new.row] = AddedRow(new.row, new.params, prompt, output)

    def leave(self, row: int) -> None:
        """A row's request is gone or will be computed no more."""
        self._added.pop(row, None)
        self._refused.pop(row, None)
        if any(row in link.accepted for link in self._links):
            self._removed[row] = None

    def reset(self) -> None:
        """All rows' requests are gone."""
        for row in {*self._added, *self._refused, *(row for link in self._links for row in link.accepted)}:
            self.leave(row)

    def begin_step(self) -> dict[int, LogitsProcessorError]:
        """Tell the processors what has changed, of each row in a call of its own.

        Returns the errors of the rows that one of them would not take, until these rows are left. Raises LogitsProcessorError
        where no row is to blame; all changes have been told then.
        """
        removed, added = [*self._removed], [*self._added.values()]
        self._removed.clear()
        self._added.clear()
        for link in self._links:
            # What one has taken, all before it have: who has nothing to be told is followed by nobody who has.
            if not self._tell(link, removed, added):
                link.tell(None)
        return dict(self._refused)

    def _tell(self, link: _Link, removed: list[int], added: list[AddedRow]) -> bool:
        """Whether there was anything to tell. A row that one processor has refused is none of those after it."""
        gone = [row for row in removed if row in link.accepted]
        for row in gone:
            link.forget(row)
        come = [entry for entry in added if entry.row not in self._refused]
        for entry in come:
            try:
                link.tell(BatchUpdate([], [entry]))
                link.accepted.add(entry.row)
            except LogitsProcessorError as error:
                self._refused[entry.row] = error
        return bool(gone or come)

    def works_on(self, greedy: npt.NDArray[np.bool_]) -> bool:
        """Whether any of them changes the choices of requests, which are greedy or not [S]."""
        return any(not (link.invariant and greedy.all()) for link in self._links)

    def apply(self, logits: Tensor, rows: npt.NDArray[np.int64], greedy: npt.NDArray[np.bool_]) -> Tensor:
        """Logits float32 [S, V] of the rows [S], changed, perhaps in place. Raises LogitsProcessorError naming the class.

        What leaves the likeliest token as it is gets only the rows that are not greedy [S]: penalties come later, and a request
        must not depend on those beside it.
        """
        for link in self._links:
            if not (link.invariant and greedy.any()):
                logits = link.apply(logits, rows)
            elif not greedy.all():
                drawn = torch.from_numpy(~greedy)
                logits[drawn] = link.apply(logits[drawn], rows[~greedy])
        return logits


def _called(one: LogitsProcessor, method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except Exception as error:
        raise LogitsProcessorError(f"{_name(one)}.{method.__name__}: {error!r}") from error


def _checked(one: LogitsProcessor, result: Any, logits: Tensor) -> Tensor:
    if not isinstance(result, Tensor) or result.shape != logits.shape or result.dtype != torch.float32:
        got = f"{result.dtype} {[*result.shape]}" if isinstance(result, Tensor) else repr(result)[:50]
        raise LogitsProcessorError(f"{_name(one)}.apply must return float32 logits {[*logits.shape]}, got {got}")
    return result


def _name(one: LogitsProcessor) -> str:
    return f"{type(one).__module__}.{type(one).__qualname__}"
