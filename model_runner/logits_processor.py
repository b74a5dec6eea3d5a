"""LogitsProcessor: what a custom change of logits is, and what it is told of the requests.

Importing this loads no torch, so that the process that checks parameters stays light.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..ipc.messages.config import EngineConfig
from ..ipc.messages.sampling import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AddedRow:
    """A request that enters a row: a new one, or one that comes back after it was preempted or the worker restarted."""

    row: int
    params: SamplingParams  # a request's own data is in `extra_args`
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]  # a live view: holds what the request brings along, then each token as it is chosen


@dataclass(frozen=True)
class BatchUpdate:
    """What changed in the rows since the last step: all rows that are gone before those that are new.

    Each row is told in an update of its own, so that an exception concerns nobody else.
    """

    removed: Sequence[int]  # a row whose request is gone, told once, when another takes the row or when its request failed
    added: Sequence[AddedRow]  # one that has entered a row; only if the processor does not raise it is told as removed later


class LogitsProcessor:
    """Changes logits before the penalties and the choice. One instance lives as long as its worker.

    A row is a place for a running request. An exception fails the request that it concerns: where `apply` fails for
    a batch, it is called again for each request alone.
    """

    def __init__(self, config: EngineConfig, **arguments: Any) -> None:
        """`arguments` are those of the entry in `logits_processors`."""

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        """Raise ValueError for parameters that it cannot work with. Called where requests come in, in another process."""

    def is_argmax_invariant(self) -> bool:
        """Whether the likeliest token stays the likeliest: then it gets only rows whose requests are not greedy."""
        return False

    def update_state(self, update: BatchUpdate | None) -> None:
        """Called before each step: for each row that changed, or once with None if none did."""

    @abstractmethod
    def apply(self, logits: "Tensor", rows: "Tensor") -> "Tensor":
        """Logits float32 [S, V] of the rows int64 [S] to logits of the same shape; changing them in place is fine.

        Minus infinity takes a token out, and those taken out before stay out. May be called again for the same tokens.
        """
