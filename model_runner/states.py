"""RowStates: what the runner remembers of the running requests, one row each.

Plans bring only changes, so tokens, block tables and sampling parameters live here as arrays that a step indexes at
once, whatever the number of rows.
"""

import numpy as np
import numpy.typing as npt

from ..ipc.messages.plans import NewRow, StepPlan
from ..ipc.messages.sampling import LOWEST_TEMPERATURE, SamplingParams
from .allow_lists import AllowLists
from .filters import keeps_some
from .logit_changes import RowChanges
from .logprobs import OFF
from .penalties import Penalties


class RowStates:
    """Rows 0 .. max_num_seqs - 1. What a row without a request holds has no meaning."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        vocab_size: int = 0,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        # One more than the longest sequence: the last position may still yield a token, which no step computes.
        self.tokens = np.zeros((max_num_seqs, max_model_len + 1), dtype=np.int32)
        self.lengths = np.zeros(max_num_seqs, dtype=np.int64)  # tokens known
        self.prompt_lengths = np.zeros(max_num_seqs, dtype=np.int64)  # how many of them are prompt
        self.blocks = np.zeros((max_num_seqs, -(-max_model_len // block_size)), dtype=np.int32)
        self.num_blocks = np.zeros(max_num_seqs, dtype=np.int64)
        self.greedy = np.ones(max_num_seqs, dtype=np.bool_)
        self.temperature = np.zeros(max_num_seqs, dtype=np.float32)  # of the noise; 0 for a greedy request
        self.top_k = np.zeros(max_num_seqs, dtype=np.int64)  # 0: off
        self.top_p = np.ones(max_num_seqs, dtype=np.float32)
        self.min_p = np.zeros(max_num_seqs, dtype=np.float32)
        self.seeds = np.zeros(max_num_seqs, dtype=np.int64)
        self.logprobs = np.full(max_num_seqs, OFF, dtype=np.int64)  # likeliest tokens to tell; -1: the whole vocabulary
        self.prompt_logprobs = np.full(max_num_seqs, OFF, dtype=np.int64)  # the same for prompts
        self.plain = np.ones(max_num_seqs, dtype=np.bool_)  # nothing changes or filters the logits, and nobody is to see them
        self.failed = np.zeros(max_num_seqs, dtype=np.bool_)  # until another request enters the row
        self.changes: dict[int, RowChanges] = {}  # by row; most requests ask for none
        self.allow_lists = AllowLists(max_num_seqs, vocab_size)
        self.penalties = Penalties(max_num_seqs, vocab_size)
        self._eos_token_ids = eos_token_ids

    def apply(self, plan: StepPlan) -> None:
        """Take in what a plan brings, before its step is computed. ValueError: the plan exceeds a row."""
        for new in plan.new:
            self._enter(new)
        for more in plan.appended:
            self._write_tokens(more.row, more.start, more.tokens)
        for row, blocks in zip(plan.rows, plan.blocks, strict=True):
            if blocks:
                self._append_blocks(row, blocks)

    def put_sampled(self, rows: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> None:
        """Make each token the last one of its row, at its position."""
        self.tokens[rows, positions] = tokens
        self.lengths[rows] = positions + 1
        self.penalties.count(rows, positions, tokens)

    def reset(self) -> None:
        """Forget all rows."""
        self.lengths[:] = 0
        self.num_blocks[:] = 0
        self.changes.clear()

    def _enter(self, new: NewRow) -> None:
        self.num_blocks[new.row] = 0
        self.failed[new.row] = False
        self._write_tokens(new.row, 0, new.tokens)
        self._append_blocks(new.row, new.blocks)
        self.prompt_lengths[new.row] = new.prompt_length
        self._set_params(new.row, new.params)
        changes = RowChanges.from_params(new.params, new.prompt_length, self._eos_token_ids)
        if changes is None:
            self.changes.pop(new.row, None)
        else:
            self.changes[new.row] = changes
        self.plain[new.row] = changes is None and self._is_plain(new.row, new.params)

    def _is_plain(self, row: int, params: SamplingParams) -> bool:
        filtered = not params.greedy and keeps_some(params.top_k, params.top_p, params.min_p)
        shown = params.logprobs is not None or params.prompt_logprobs is not None
        return not (filtered or shown or self.allow_lists.used[row] or self.penalties.used[row])

    def _set_params(self, row: int, params: SamplingParams) -> None:
        if not params.greedy and (params.seed is None or params.seed < 0):
            raise ValueError(f"seed of row {row} must be set before a request reaches a worker, got {params.seed}")
        self.greedy[row] = params.greedy
        self.temperature[row] = 0.0 if params.greedy else max(params.temperature, LOWEST_TEMPERATURE)
        self.top_k[row] = max(params.top_k, 0)
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.seeds[row] = params.seed or 0
        self.logprobs[row] = OFF if params.logprobs is None else params.logprobs
        self.prompt_logprobs[row] = OFF if params.prompt_logprobs is None else params.prompt_logprobs
        self.allow_lists.enter(row, params)
        self.penalties.enter(row, params)

    def _write_tokens(self, row: int, start: int, tokens: list[int]) -> None:
        end, limit = start + len(tokens), self.tokens.shape[1]
        if end > limit:
            raise ValueError(f"row {row} holds at most {limit} tokens, got {end}")
        self.tokens[row, start:end] = tokens
        self.lengths[row] = end
        self.penalties.forget_counts(row)

    def _append_blocks(self, row: int, blocks: list[int]) -> None:
        held = int(self.num_blocks[row])
        end, limit = held + len(blocks), self.blocks.shape[1]
        if end > limit:
            raise ValueError(f"row {row} holds at most {limit} blocks, got {end}")
        self.blocks[row, held:end] = blocks
        self.num_blocks[row] = end
