"""What requests change in the logits of a few tokens: biases, no bad words, and no end before `min_tokens`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..ipc.messages.sampling import SamplingParams

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowChanges:
    """The changes of one request. `tokens` holds each token id once."""

    tokens: Ids  # [B]
    biases: npt.NDArray[np.float32]  # [B]
    banned: Ids  # [N], which may never be drawn
    longer: dict[int, list[tuple[list[int], int]]]  # (ids but the last, the last) of longer bad words, by the last but one
    most_ids: int  # of a longer bad word but for its last
    stop_tokens: Ids  # [M], which may not be drawn ...
    min_end: int  # ... for a position of the whole sequence before this one
    prompt_length: int

    @classmethod
    def from_params(cls, params: SamplingParams, prompt_length: int, eos_token_ids: tuple[int, ...]) -> "RowChanges | None":
        """The changes that `params` ask for; None if they ask for none. Output that a request brings along counts."""
        if not params.logit_bias and not params.min_tokens and not params.bad_words_token_ids:
            return None
        bias = params.logit_bias or {}
        stops = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
        longer: dict[int, list[tuple[list[int], int]]] = {}
        for *head, last in params.bad_words_token_ids:
            if head:
                longer.setdefault(head[-1], []).append((head, last))
        return cls(
            tokens=np.array([*bias], dtype=np.int64),
            biases=np.array([*bias.values()], dtype=np.float32),
            banned=np.array([word[0] for word in params.bad_words_token_ids if len(word) == 1], dtype=np.int64),
            longer=longer,
            most_ids=max(map(len, params.bad_words_token_ids), default=1) - 1,
            stop_tokens=np.array(sorted(stops), dtype=np.int64),
            min_end=prompt_length + params.min_tokens,
            prompt_length=prompt_length,
        )

    def out_at(self, position: int, tokens: npt.NDArray[np.int32]) -> Ids:
        """Tokens that may not be drawn for this position of the whole sequence, which holds `tokens` before it."""
        parts = [self.banned]
        if position > self.prompt_length and (words := self.longer.get(int(tokens[position - 1]))):
            said = tokens[max(self.prompt_length, position - self.most_ids) : position].tolist()
            lasts = [last for head, last in words if said[-len(head) :] == head]
            parts.append(np.array(lasts, dtype=np.int64))
        if position < self.min_end:
            parts.append(self.stop_tokens)
        return np.concatenate(parts)


@dataclass(frozen=True)
class LogitChanges:
    """The changes of a batch of S rows: biases, each pair of (row, token) at most once, and tokens to take out."""

    rows: Tensor  # int64 [B]
    tokens: Tensor  # int64 [B]
    biases: Tensor  # float32 [B]
    out_rows: Tensor  # int64 [M]
    out_tokens: Tensor  # int64 [M]

    @classmethod
    def from_rows(
        cls, changes: Sequence[RowChanges | None], positions: Sequence[int], tokens: Sequence[npt.NDArray[np.int32]]
    ) -> "LogitChanges | None":
        """The changes of S rows, for the positions in the whole sequence of the tokens being drawn; None if there are none.

        `tokens` are the sequences, known up to these positions.
        """
        some = [(row, one) for row, one in enumerate(changes) if one is not None]
        biased = [(row, one) for row, one in some if one.tokens.size]
        out = [(row, found) for row, one in some if (found := one.out_at(positions[row], tokens[row])).size]
        if not biased and not out:
            return None
        return cls(
            rows=_repeated([(row, one.tokens.size) for row, one in biased]),
            tokens=_joined([one.tokens for _, one in biased], np.int64),
            biases=_joined([one.biases for _, one in biased], np.float32),
            out_rows=_repeated([(row, found.size) for row, found in out]),
            out_tokens=_joined([found for _, found in out], np.int64),
        )

    def add_biases(self, logits: Tensor) -> None:
        """Change logits float32 [S, V] in place."""
        logits[self.rows, self.tokens] += self.biases

    def take_out(self, logits: Tensor) -> None:
        """Make the logits float32 [S, V] of tokens that may not be drawn minus infinity, in place."""
        logits[self.out_rows, self.out_tokens] = float("-inf")


def _repeated(counts: list[tuple[int, int]]) -> Tensor:
    return torch.from_numpy(np.repeat([row for row, _ in counts], [count for _, count in counts]).astype(np.int64))


def _joined(parts: list[npt.NDArray[np.generic]], dtype: type[np.generic]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.empty(0, dtype), *parts]))
