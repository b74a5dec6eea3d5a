"""Repetition, frequency and presence penalties of all rows at once."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..ipc.messages.sampling import SamplingParams

_STALE = -1


class Penalties:
    """How often each row's output holds each token, counted as tokens are chosen, and what that takes from their logits."""

    def __init__(self, max_num_seqs: int, vocab_size: int) -> None:
        self.used = np.zeros(max_num_seqs, dtype=np.bool_)
        self._repetition = np.ones(max_num_seqs, dtype=np.float32)
        self._frequency = np.zeros(max_num_seqs, dtype=np.float32)
        self._presence = np.zeros(max_num_seqs, dtype=np.float32)
        self._shape = (max_num_seqs, vocab_size)
        self._counts: npt.NDArray[np.int32] | None = None  # made when first needed; pages of rows never used stay untouched
        self._ends = np.full(max_num_seqs, _STALE, dtype=np.int64)  # the position up to which the output is counted

    def enter(self, row: int, params: SamplingParams) -> None:
        """Take the parameters of a row's new request."""
        self.used[row] = params.penalized
        self._repetition[row] = params.repetition_penalty
        self._frequency[row] = params.frequency_penalty
        self._presence[row] = params.presence_penalty

    def forget_counts(self, row: int) -> None:
        """The row's tokens were written anew: count them again when they are next needed."""
        self._ends[row] = _STALE

    def count(self, rows: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> None:
        """Each token has become the last one of its row, at its position."""
        if self._counts is not None:
            mine = self.used[rows]
            self._counts[rows[mine], tokens[mine]] += 1
            self._ends[rows[mine]] = positions[mine] + 1

    def apply(
        self,
        logits: Tensor,
        rows: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        tokens: npt.NDArray[np.int32],
        prompt_lengths: npt.NDArray[np.int64],
    ) -> None:
        """Change logits float32 [S, V] of the rows [S] in place, for the tokens to come at positions `ends` [S].

        tokens [max_num_seqs, L] and prompt_lengths [max_num_seqs] are those of all rows.
        """
        picked = np.flatnonzero(self.used[rows])
        if not len(picked):
            return
        rows, ends = rows[picked], ends[picked]
        counts = self._counted(rows, ends, tokens, prompt_lengths)
        # Only tokens of the sequence change. One that comes twice is changed twice from the same logit, to the same; so is
        # the first one, which stands in for what lies behind the end of a shorter sequence.
        width = int(ends.max())
        seen = np.where(np.arange(width) < ends[:, None], tokens[rows, :width], tokens[rows, :1]).astype(np.int64)
        times = torch.from_numpy(counts[rows[:, None], seen])
        at = (torch.from_numpy(picked)[:, None], torch.from_numpy(seen))
        repetition, frequency, presence = (
            torch.from_numpy(values[rows])[:, None] for values in (self._repetition, self._frequency, self._presence)
        )
        old = logits[at]
        repeated = torch.where(old > 0, old / repetition, old * repetition)
        logits[at] = repeated - frequency * times - presence * (times > 0)

    def _counted(
        self,
        rows: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        tokens: npt.NDArray[np.int32],
        prompt_lengths: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int32]:
        """The counts, with those of these rows made anew where they are not for just these ends."""
        if self._counts is None:
            self._counts = np.zeros(self._shape, dtype=np.int32)
        for row, end in zip(rows[stale := self._ends[rows] != ends].tolist(), ends[stale].tolist(), strict=True):
            output = tokens[row, prompt_lengths[row] : end]
            self._counts[row] = np.bincount(output, minlength=self._shape[1])
            self._ends[row] = end
        return self._counts
