"""How likely tokens are by the model's raw logits, in the form of results."""

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..ipc.messages.outputs import TokenLogprobs

OFF = -2  # in place of a number of likeliest tokens: nothing is asked for
SLICE = 512  # positions whose logits are looked at together, lest they fill the memory
MAX_BYTES = 56 << 20  # of all logprobs of a step, so that its result can be sent
_ENTRY_BYTES = 40  # of a TokenLogprobs, at most, besides its columns


class TooManyLogprobs(ValueError):
    """The logprobs of a step would not fit into its result."""


def logprobs_bytes(counts: npt.NDArray[np.int64], vocab_size: int) -> npt.NDArray[np.int64]:
    """What the logprobs of one token take when sent, for each number of likeliest tokens asked for."""
    columns = np.where(counts < 0, 4 * vocab_size, 8 * np.minimum(counts, vocab_size))
    return np.where(counts == OFF, 0, columns + _ENTRY_BYTES)


def token_logprobs(
    logits: Tensor, tokens: Tensor, counts: npt.NDArray[np.int64]
) -> tuple[list[TokenLogprobs], npt.NDArray[np.bool_]]:
    """(logprobs of tokens int64 [S] in logits [S, V] of any floating dtype, whether each is a number).

    counts [S]: how many of the likeliest tokens to tell with each; -1 tells of the whole vocabulary in order.
    """
    raw = logits.float()
    logprobs = raw.log_softmax(dim=-1)
    at = tokens.unsqueeze(-1)
    ranks = ((raw > raw.gather(1, at)).sum(dim=-1) + 1).tolist()
    own = logprobs.gather(1, at).squeeze(-1)
    most = min(max(int(counts.max()), 0), raw.shape[1])
    top = raw.topk(most, dim=-1).indices
    ids = top.numpy().astype("<i4")
    values = logprobs.gather(1, top).numpy().astype("<f4")
    entries = []
    for index, (value, rank, count) in enumerate(zip(own.tolist(), ranks, counts.tolist(), strict=True)):
        if count < 0:
            entries.append(TokenLogprobs(value, rank, b"", logprobs[index].numpy().astype("<f4").tobytes()))
        else:
            entries.append(TokenLogprobs(value, rank, ids[index, :count].tobytes(), values[index, :count].tobytes()))
    return entries, ~own.isnan().numpy()
