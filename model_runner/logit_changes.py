"""What a request changes in its logits before anything is chosen: biases, and no end before `min_tokens`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..ipc.messages.sampling import SamplingParams


@dataclass(frozen=True)
class RowChanges:
    """The changes of one request. A token id occurs once in each of the two lists."""

    tokens: npt.NDArray[np.int64]  # [B]
    biases: npt.NDArray[np.float32]  # [B]
    stop_tokens: npt.NDArray[np.int64]  # [M], which may not be drawn ...
    min_end: int  # ... for a position of the whole sequence before this one

    @classmethod
    def from_params(cls, params: SamplingParams, prompt_length: int, eos_token_ids: tuple[int, ...]) -> "RowChanges | None":
        """The changes that `params` ask for; None if they ask for none. Output that a request brings along counts."""
        if not params.logit_bias and not params.min_tokens:
            return None
        bias = params.logit_bias or {}
        stops = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
        return cls(
            tokens=np.array([*bias], dtype=np.int64),
            biases=np.array([*bias.values()], dtype=np.float32),
            stop_tokens=np.array(sorted(stops), dtype=np.int64),
            min_end=prompt_length + params.min_tokens,
        )


@dataclass(frozen=True)
class LogitChanges:
    """The changes of a batch of S rows, each pair of (row, token) at most once in each of the two lists."""

    rows: Tensor  # int64 [B]
    tokens: Tensor  # int64 [B]
    biases: Tensor  # float32 [B]
    stop_rows: Tensor  # int64 [M]
    stop_tokens: Tensor  # int64 [M]

    @classmethod
    def from_rows(cls, changes: Sequence[RowChanges | None], positions: Sequence[int]) -> "LogitChanges | None":
        """The changes of S rows, for the positions in the whole sequence of the tokens being drawn; None if there are none."""
        biased = [(row, one) for row, one in enumerate(changes) if one is not None and one.tokens.size]
        stopless = [
            (row, one)
            for row, (one, position) in enumerate(zip(changes, positions, strict=True))
            if one is not None and one.stop_tokens.size and position < one.min_end
        ]
        if not biased and not stopless:
            return None
        return cls(
            rows=_repeated([(row, one.tokens.size) for row, one in biased]),
            tokens=_joined([one.tokens for _, one in biased], np.int64),
            biases=_joined([one.biases for _, one in biased], np.float32),
            stop_rows=_repeated([(row, one.stop_tokens.size) for row, one in stopless]),
            stop_tokens=_joined([one.stop_tokens for _, one in stopless], np.int64),
        )

    def apply(self, logits: Tensor) -> Tensor:
        """Logits [S, V] of any floating dtype to a float32 copy with the changes. A NaN or an infinity stays one."""
        changed = logits.to(torch.float32, copy=True)
        changed[self.rows, self.tokens] += self.biases
        stops = changed[self.stop_rows, self.stop_tokens]
        changed[self.stop_rows, self.stop_tokens] = stops.masked_fill(stops < float("inf"), float("-inf"))
        return changed


def _repeated(counts: list[tuple[int, int]]) -> Tensor:
    return torch.from_numpy(np.repeat([row for row, _ in counts], [count for _, count in counts]).astype(np.int64))


def _joined(parts: list[npt.NDArray[np.generic]], dtype: type[np.generic]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.empty(0, dtype), *parts]))
