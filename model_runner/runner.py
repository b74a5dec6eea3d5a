"""ModelRunner: executes step plans on one worker.

Contract: plans are executed in order. A token the runner sampled is written into its row at once, so that the next
plan may compute it without naming it. Computing positions again, after a rewind or for a retry, writes the same keys
and values again and is harmless.
"""

import os
import traceback

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from ..ipc.messages.config import EngineConfig
from ..ipc.messages.plans import StepPlan
from ..ipc.messages.results import RowFailure, StepResult, WorkerDescription
from ..kernels.select import select_kernels
from .batch import StepRows, build_inputs, logit_changes, sampling_batch
from .dtypes import resolve_dtype
from .kv_cache import KVCache, max_blocks
from .loading import OnProgress, load_model, weight_layers
from .memory import keep_freed_memory
from .sampler import Sampler
from .states import RowStates

FAILED_TOKEN = -1  # stands for a failed row's token in StepResult.tokens


class NonFiniteLogitsError(ValueError):
    """The model's output for a request is not a number: broken weights, or an overflow on this input."""


class ModelRunner:
    """The model, its KV cache and its rows. Not thread-safe."""

    def __init__(self, *, config: EngineConfig, rank: int = 0, on_progress: OnProgress | None = None) -> None:
        """Load the weights of `config.checkpoint.directory`. Raises ValueError for a checkpoint that does not fit."""
        torch.set_num_threads(config.parallel.num_threads or len(os.sched_getaffinity(0)))
        keep_freed_memory()
        self._config = config
        self._rank = rank
        self._dtype = resolve_dtype(config)
        self._kernels = select_kernels()
        with torch.inference_mode():
            self._model = load_model(config, on_progress)
        self._shape = self._model.shape
        self._max_model_len = config.checkpoint.max_model_len or self._shape.max_position
        self._sampler = Sampler(self._kernels)
        self._states = RowStates(
            max_num_seqs=config.scheduler.max_num_seqs,
            max_model_len=self._max_model_len,
            block_size=config.cache.block_size,
            eos_token_ids=config.checkpoint.eos_token_ids,
        )
        self._cache: KVCache | None = None
        self._steps = 0

    def max_blocks(self) -> int:
        """KV blocks this worker can hold; ValueError, with the numbers, when a request of max_model_len does not fit."""
        return max_blocks(self._config, self._shape, max_model_len=self._max_model_len, dtype=self._dtype)

    def init_cache(self, num_blocks: int) -> None:
        """Allocate the KV cache; needed before the first step. A second call with the same number keeps what there is."""
        if self._cache is not None and self._cache.num_blocks == num_blocks:
            return
        with torch.inference_mode():
            self._cache = KVCache(
                self._shape, num_blocks=num_blocks, block_size=self._config.cache.block_size, dtype=self._dtype
            )

    def reset(self) -> None:
        """Forget all rows; weights and cache stay."""
        self._states.reset()

    def describe(self) -> WorkerDescription:
        """Numbers of this worker now."""
        return WorkerDescription(
            rank=self._rank,
            pid=os.getpid(),
            device="cpu",
            dtype=str(self._dtype).removeprefix("torch."),
            num_threads=torch.get_num_threads(),
            weight_bytes=sum(layer.weight_bytes for layer in weight_layers(self._model)),
            cache_bytes=0 if self._cache is None else self._cache.nbytes,
            steps=self._steps,
        )

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Compute a step; the tokens are parallel to `plan.sample`.

        A step that fails as a batch is computed again request by request: only those that fail alone are reported as
        failures, with FAILED_TOKEN in place of a token. One that failed fails again in the steps that were planned before
        that was known. Raises ValueError for a plan that exceeds the rows or asks for
        positions whose tokens or blocks are not known, which is the scheduler's fault and no request's.
        """
        if plan.late_mask:
            raise ValueError(f"step {plan.step} waits for a token mask, which this runner does not support")
        self._states.apply(plan)
        step = StepRows.from_plan(plan)
        failed = self._states.failed[step.rows]
        going_on = np.flatnonzero(~failed)
        tokens = np.full(len(step.rows), FAILED_TOKEN, dtype=np.int64)
        failures: list[RowFailure] = []
        if len(going_on):
            some = step.select(going_on)
            self._check(plan.step, some)
            drawn = tokens[going_on]
            for failure in self._compute(some, drawn):
                self._states.failed[some.rows[failure.index]] = True
                failures.append(msgspec.structs.replace(failure, index=int(going_on[failure.index])))
            tokens[going_on] = drawn
        failures += (_failed_before(index) for index in np.flatnonzero(failed).tolist())
        self._steps += 1
        # One traceback tells the cause, and the result stays small enough to be sent however many fail.
        failures[1:] = [msgspec.structs.replace(failure, traceback="") for failure in failures[1:]]
        return StepResult(step=plan.step, tokens=tokens[plan.sample].tolist(), failures=failures)

    def _check(self, number: int, step: StepRows) -> None:
        states, block_size = self._states, self._config.cache.block_size
        known, held = states.lengths[step.rows], states.num_blocks[step.rows] * block_size
        for bad in np.flatnonzero(step.ends > np.minimum(known, held)):
            raise ValueError(
                f"step {number} computes row {step.rows[bad]} up to position {step.ends[bad]}, but it has {known[bad]} "
                f"tokens and blocks for {held[bad]}"
            )

    def _compute(self, step: StepRows, tokens: npt.NDArray[np.int64]) -> list[RowFailure]:
        """Run the batch, or each request alone if that fails; sampled tokens go into `tokens` and the rows."""
        try:
            drawn, finite = self._forward(step)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not take the other requests down
            if len(step.rows) == 1:
                return [_failure(0, error)]
            return [failure for index in range(len(step.rows)) for failure in self._compute_alone(step, index, tokens)]
        sampled = np.flatnonzero(step.sampled)
        good = sampled[finite[sampled]]
        tokens[good] = drawn[finite[sampled]]
        self._states.put_sampled(step.rows[good], step.ends[good], tokens[good])
        return [self._not_finite(step, index) for index in np.flatnonzero(~finite).tolist()]

    def _compute_alone(self, step: StepRows, index: int, tokens: npt.NDArray[np.int64]) -> list[RowFailure]:
        failures = self._compute(step.select([index]), tokens[index : index + 1])
        return [msgspec.structs.replace(failure, index=index) for failure in failures]

    def _forward(self, step: StepRows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """(tokens of the requests that yield one, whether the logits of each request are finite).

        Those that yield none are looked at too: what a chunk of a prompt leaves in the cache may be found by others, and a
        number that is not finite anywhere in it has spread to its last position.
        """
        assert self._cache is not None, "init_cache comes before the first step"
        logits = self._model(build_inputs(step, self._states, self._cache, self._kernels), self._cache)
        finite = np.ones(len(step.rows), dtype=np.bool_)
        if not step.sampled.all():
            finite[~step.sampled] = logits[torch.from_numpy(~step.sampled)].amax(dim=-1).isfinite().numpy()
            logits = logits[torch.from_numpy(step.sampled)]
        if not step.sampled.any():
            return np.empty(0, dtype=np.int64), finite
        changes = logit_changes(step, self._states)
        changed = logits if changes is None else changes.apply(logits)
        drawn = self._sampler.sample(changed, sampling_batch(step, self._states))
        # A NaN or an infinity wins any argmax, and no change takes it away, so looking at the winner finds it in the row.
        finite[step.sampled] = logits.gather(1, drawn.unsqueeze(-1)).squeeze(-1).isfinite().numpy()
        return drawn.numpy(), finite

    def _not_finite(self, step: StepRows, index: int) -> RowFailure:
        assert self._cache is not None
        row, end = int(step.rows[index]), int(step.ends[index])
        used = -(-end // self._config.cache.block_size)
        self._cache.scrub(self._states.blocks[row, :used].tolist())
        return _failure(index, NonFiniteLogitsError(f"the model's output after {end} tokens is not finite"))


def _failed_before(index: int) -> RowFailure:
    return RowFailure(index=index, kind="RowFailed", message="a step before this one failed for the request")


def _failure(index: int, error: Exception) -> RowFailure:
    trace = "".join(traceback.format_exception(error))
    return RowFailure(index=index, kind=type(error).__name__, message=str(error)[:200], traceback=trace[-2000:])
