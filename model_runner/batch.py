"""From the rows of a step to the tensors of its forward pass and of its sampling."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..ipc.messages.plans import StepPlan
from ..kernels.interface import AttentionBatch, KernelSet
from .inputs import StepInputs
from .kv_cache import KVCache
from .logit_changes import LogitChanges
from .logprobs import OFF
from .sampler import SamplingBatch
from .states import RowStates


@dataclass(frozen=True)
class StepRows:
    """The scheduled requests of a step, or some of them: parallel arrays of length R."""

    indices: npt.NDArray[np.int64]  # into the plan's rows
    rows: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    sampled: npt.NDArray[np.bool_]  # whether the last position yields a token

    @classmethod
    def from_plan(cls, plan: StepPlan) -> "StepRows":
        """All requests of a plan, in its order."""
        rows, starts, counts = (np.array(part, dtype=np.int64) for part in (plan.rows, plan.starts, plan.counts))
        sampled = np.zeros(len(rows), dtype=np.bool_)
        sampled[plan.sample] = True
        return cls(np.arange(len(rows)), rows, starts, counts, sampled)

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """The position after the last computed one: that of the token being drawn."""
        return self.starts + self.counts

    def select(self, chosen: npt.NDArray[np.int64] | npt.NDArray[np.bool_] | list[int]) -> "StepRows":
        """Some of the requests, by index or as a mask."""
        return StepRows(self.indices[chosen], self.rows[chosen], self.starts[chosen], self.counts[chosen], self.sampled[chosen])


@dataclass(frozen=True)
class PromptSpan:
    """Positions start .. end - 1 of a request, each of which tells of the prompt's token at the next."""

    index: int  # into a StepRows
    start: int
    end: int


def prompt_spans(step: StepRows, states: RowStates) -> list[PromptSpan]:
    """The positions whose logits tell of a prompt's tokens, of the requests that ask for them."""
    asking = states.prompt_logprobs[step.rows] != OFF
    if not asking.any():
        return []
    ends = np.minimum(step.ends, states.prompt_lengths[step.rows] - 1)
    asked = np.flatnonzero(asking & (step.starts < ends))
    return [PromptSpan(index, int(step.starts[index]), int(ends[index])) for index in asked.tolist()]


def build_inputs(
    step: StepRows, states: RowStates, cache: KVCache, kernels: KernelSet, spans: Sequence[PromptSpan] = ()
) -> StepInputs:
    """The flat batch: request after request, each with its positions in order.

    Logits are wanted of the last position of each request, then of those of the spans.
    """
    flat_rows, positions = step.rows, step.starts
    lasts = np.cumsum(step.counts) - 1
    if len(lasts) and lasts[-1] != len(lasts) - 1:
        flat_rows = np.repeat(step.rows, step.counts)
        positions = np.arange(lasts[-1] + 1) + np.repeat(step.ends - 1 - lasts, step.counts)
    size = cache.block_size
    table = states.blocks[step.rows, : -(-int(step.ends.max()) // size)]
    slots = states.blocks[flat_rows, positions // size].astype(np.int64) * size + positions % size
    plan = kernels.plan_attention(
        AttentionBatch(table, step.starts, step.counts),
        num_kv_heads=cache.num_kv_heads,
        head_dim=cache.head_dim,
        block_size=size,
        dtype=cache.dtype,
    )
    return StepInputs(
        tokens=torch.from_numpy(states.tokens[flat_rows, positions].astype(np.int64)),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        attention=plan,
        logit_rows=None if len(lasts) == len(positions) and not spans else torch.from_numpy(_wanted(lasts, step, spans)),
    )


def _wanted(lasts: npt.NDArray[np.int64], step: StepRows, spans: Sequence[PromptSpan]) -> npt.NDArray[np.int64]:
    firsts = lasts + 1 - step.counts
    return np.concatenate([lasts, *(firsts[span.index] + np.arange(span.end - span.start) for span in spans)])


def sampling_batch(step: StepRows, states: RowStates) -> SamplingBatch:
    """Parameters and positions of requests, all of which yield a token."""
    rows = step.rows
    return SamplingBatch(
        temperature=torch.from_numpy(states.temperature[rows]),
        top_k=torch.from_numpy(states.top_k[rows]),
        top_p=torch.from_numpy(states.top_p[rows]),
        min_p=torch.from_numpy(states.min_p[rows]),
        seeds=torch.from_numpy(states.seeds[rows]),
        positions=torch.from_numpy(step.ends),
    )


def logit_changes(step: StepRows, states: RowStates) -> LogitChanges | None:
    """What requests, all of which yield a token, change in the logits of a few tokens; None if nothing."""
    if not states.changes:
        return None
    rows = step.rows.tolist()
    changes = [states.changes.get(row) for row in rows]
    return LogitChanges.from_rows(changes, step.ends.tolist(), [states.tokens[row] for row in rows])
