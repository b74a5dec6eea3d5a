"""Allow-lists: the only tokens that a request may get, as masks of rows."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..ipc.messages.sampling import SamplingParams


class AllowLists:
    """A mask over the vocabulary for each row whose request has an allow-list."""

    def __init__(self, max_num_seqs: int, vocab_size: int) -> None:
        self.used = np.zeros(max_num_seqs, dtype=np.bool_)
        self._shape = (max_num_seqs, vocab_size)
        self._out: npt.NDArray[np.bool_] | None = None  # made when first needed

    def enter(self, row: int, params: SamplingParams) -> None:
        """Take the list of a row's new request. Ids beyond the vocabulary allow nothing."""
        self.used[row] = params.allowed_token_ids is not None
        if params.allowed_token_ids is None:
            return
        if self._out is None:
            self._out = np.zeros(self._shape, dtype=np.bool_)
        self._out[row] = True
        self._out[row, [token for token in params.allowed_token_ids if token < self._shape[1]]] = False

    def apply(self, logits: Tensor, rows: npt.NDArray[np.int64]) -> None:
        """Take all other tokens out of logits float32 [S, V] of the rows [S], in place."""
        picked = np.flatnonzero(self.used[rows])
        if not len(picked) or self._out is None:
            return
        out = torch.from_numpy(self._out[rows[picked]])
        if len(picked) == len(rows):
            logits.masked_fill_(out, float("-inf"))
        else:
            at = torch.from_numpy(picked)
            logits[at] = logits[at].masked_fill_(out, float("-inf"))
