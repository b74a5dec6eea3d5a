"""ModelRunner: executes step plans on one worker.

Contract: plans are executed in order. A token the runner sampled is written into its row at once, so that the next
plan may compute it without naming it. Computing positions again, after a rewind or for a retry, writes the same keys
and values again and is harmless.
"""

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..ipc.messages.config import EngineConfig
from ..ipc.messages.descriptions import WorkerDescription
from ..ipc.messages.outputs import TokenLogprobs
from ..ipc.messages.plans import StepPlan
from ..ipc.messages.results import PromptLogprobs, StepResult
from ..kernels.select import select_kernels
from .batch import PromptSpan, StepRows, build_inputs, prompt_spans
from .choice import Choice, Chooser
from .dtypes import resolve_dtype
from .kv_cache import KVCache, max_blocks
from .loading import OnProgress, load_model, weight_layers
from .logprobs import MAX_BYTES, OFF, SLICE, TooManyLogprobs, logprobs_bytes, token_logprobs
from .memory import keep_freed_memory
from .models.registry import ChoosingLM
from .outcome import StepOutcome
from .phases import PhaseClock
from .processor_chain import LogitsProcessorError, ProcessorChain
from .states import RowStates


class NonFiniteLogitsError(ValueError):
    """The model's output for a request is not a number: broken weights, or an overflow on this input."""


@dataclass(frozen=True)
class _Computed:
    """What a forward over the requests of a StepRows gave. Nothing of it has been taken over yet."""

    sampled: npt.NDArray[np.int64]  # [S], indices of those that yield a token
    choice: Choice  # for these
    finite: npt.NDArray[np.bool_]  # of all requests
    logprobs: list[tuple[int, TokenLogprobs]]  # by index
    prompt_logprobs: list[tuple[int, int, list[TokenLogprobs]]]  # index, first token, entries


class ModelRunner:
    """The model, its KV cache and its rows. Not thread-safe."""

    def __init__(self, *, config: EngineConfig, rank: int = 0, on_progress: OnProgress | None = None) -> None:
        """Load the weights of `config.checkpoint.directory`.

        Raises ValueError for a checkpoint that does not fit, and for an entry of `logits_processors` that leads to none.
        """
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
        self._states = RowStates(
            max_num_seqs=config.scheduler.max_num_seqs,
            max_model_len=self._max_model_len,
            block_size=config.cache.block_size,
            vocab_size=self._shape.vocab_size,
            eos_token_ids=config.checkpoint.eos_token_ids,
        )
        self._processors = ProcessorChain(config, self._states)
        self._chooser = Chooser(self._states, self._kernels, self._processors)
        self._cache: KVCache | None = None
        self._steps = 0
        self._clock = PhaseClock("rows", "inputs", "forward", "logits", "choose", "result")

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
        self._processors.reset()

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
            phases=dict(self._clock.seconds),
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
        self._clock.skip()
        self._check_blocks(plan)
        self._states.apply(plan)
        for new in plan.new:
            self._processors.enter(new)
        if plan.copies:
            assert self._cache is not None, "init_cache comes before the first step"
            # Once for the whole step: what is computed again request by request finds them done.
            self._cache.copy(plan.copies)
        outcome = StepOutcome(plan)
        step = StepRows.from_plan(plan)
        if self._states.failed.any():
            for index in np.flatnonzero(self._states.failed[step.rows]).tolist():
                outcome.failed_before(index)
            step = self._going_on(step)
        if len(step.rows):
            self._check(plan.step, step)
            self._refuse_some(plan, step, outcome)
            step = self._going_on(step)
        self._clock.mark("rows")
        if len(step.rows):
            self._compute(step, outcome)
        self._steps += 1
        result = outcome.result()
        self._clock.mark("result")
        return result

    def _going_on(self, step: StepRows) -> StepRows:
        if not self._states.failed.any():
            return step
        failed = self._states.failed[step.rows]
        return step.select(np.flatnonzero(~failed)) if failed.any() else step

    def _check_blocks(self, plan: StepPlan) -> None:
        """Kernels write where a plan says, without a look."""
        limit = 0 if self._cache is None else self._cache.num_blocks
        for blocks in (*plan.blocks, *(new.blocks for new in plan.new)):
            if blocks and not 0 <= min(blocks) <= max(blocks) < limit:
                raise ValueError(f"step {plan.step} names blocks {blocks}, but the KV cache holds {limit}")

    def _check(self, number: int, step: StepRows) -> None:
        states, block_size = self._states, self._config.cache.block_size
        known, held = states.lengths[step.rows], states.num_blocks[step.rows] * block_size
        for bad in np.flatnonzero(step.ends > np.minimum(np.minimum(known, held), self._max_model_len)):
            raise ValueError(
                f"step {number} computes row {step.rows[bad]} up to position {step.ends[bad]}, but it has {known[bad]} "
                f"tokens and blocks for {held[bad]}, and max_model_len is {self._max_model_len}"
            )

    def _refuse_some(self, plan: StepPlan, step: StepRows, outcome: StepOutcome) -> None:
        """Fail requests that cannot be computed with the others, before anything is."""
        try:
            refused = self._processors.begin_step()
        except LogitsProcessorError as error:
            refused = dict.fromkeys(step.rows.tolist(), error)
        if refused:
            for index in np.flatnonzero(np.isin(step.rows, [*refused])).tolist():
                self._fail(step, index, refused[int(step.rows[index])], outcome)
        for index, size in self._too_large(plan, step):
            self._fail(step, index, TooManyLogprobs(_too_many(size)), outcome)

    def _too_large(self, plan: StepPlan, step: StepRows) -> list[tuple[int, int]]:
        """(index, bytes) of requests whose logprobs do not fit beside those of who asks for fewer, or was there first."""
        if self._states.plain[step.rows].all():
            return []
        wanted, spans = self._states.logprobs[step.rows], prompt_spans(step, self._states)
        if not spans and (wanted == OFF).all():
            return []
        sizes = np.where(step.sampled, logprobs_bytes(wanted, self._shape.vocab_size), 0)
        each = logprobs_bytes(self._states.prompt_logprobs[step.rows], self._shape.vocab_size)
        for span in spans:
            sizes[span.index] += each[span.index] * (span.end - span.start)
        newcomers = np.isin(step.rows, [new.row for new in plan.new])
        order = np.lexsort((newcomers, sizes))
        large = order[sizes[order].cumsum() > MAX_BYTES]
        return [(index, int(sizes[index])) for index in sorted(large.tolist())]

    def _compute(self, step: StepRows, outcome: StepOutcome) -> None:
        """Run the batch, or each request alone if that fails."""
        try:
            computed = self._forward(step)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not take the other requests down
            if len(step.rows) == 1:
                self._fail(step, 0, error, outcome)
            else:
                for index in range(len(step.rows)):
                    self._compute(step.select([index]), outcome)
            return
        sampled, choice = computed.sampled, computed.choice
        good, tokens = sampled, choice.tokens
        if choice.errors or not computed.finite.all():
            usable = computed.finite[sampled]
            usable[[*choice.errors]] = False
            good, tokens = sampled[usable], choice.tokens[usable]
        outcome.tokens[step.indices[good]] = tokens
        self._states.put_sampled(step.rows[good], step.ends[good], tokens)
        errors = {int(sampled[index]): error for index, error in choice.errors.items()}
        for index in np.flatnonzero(~computed.finite).tolist():
            errors[index] = self._scrub(step, index)
        for index, cause in errors.items():
            self._fail(step, index, cause, outcome)
        outcome.logprobs |= {int(step.indices[index]): one for index, one in computed.logprobs if index not in errors}
        outcome.prompt_logprobs += [
            PromptLogprobs(int(step.indices[index]), first, entries)
            for index, first, entries in computed.prompt_logprobs
            if index not in errors
        ]

    def _forward(self, step: StepRows) -> _Computed:
        """Logits of all requests, tokens of those that yield one, and the logprobs asked for.

        Logits of those that yield none are looked at too: what a chunk of a prompt leaves in the cache may be found by others,
        and a number that is not finite anywhere in it has spread to its last position.
        """
        assert self._cache is not None, "init_cache comes before the first step"
        plain = isinstance(self._model, ChoosingLM) and self._chooser.is_plain(step)
        spans = [] if plain else prompt_spans(step, self._states)
        inputs = build_inputs(step, self._states, self._cache, self._kernels, spans)
        self._clock.mark("inputs")
        hidden = self._model(inputs, self._cache)
        self._clock.mark("forward")
        count = len(step.rows)
        if plain:
            assert isinstance(self._model, ChoosingLM)
            choice = self._chooser.choose_plainly(self._model, hidden, step)
            self._clock.mark("logits")
            computed = _Computed(np.arange(count), choice, choice.finite, [], [])
            self._clock.mark("choose")
            return computed
        logits = self._model.compute_logits(hidden[:count])
        self._clock.mark("logits")
        finite = np.ones(count, dtype=np.bool_)
        sampling = step
        if not step.sampled.all():
            finite[~step.sampled] = logits[torch.from_numpy(~step.sampled)].amax(dim=-1).isfinite().numpy()
            logits = logits[torch.from_numpy(step.sampled)]
            sampling = step.select(step.sampled)
        sampled = np.flatnonzero(step.sampled)
        choice = Choice(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.bool_), {})
        if len(sampled):
            choice = self._chooser.choose(logits, sampling)
            finite[sampled] = choice.finite
        logprobs = self._logprobs(logits, sampling, choice)
        prompt_logprobs = self._prompt_logprobs(hidden[count:], step, spans, finite)
        self._clock.mark("choose")
        return _Computed(sampled, choice, finite, [(int(sampled[at]), one) for at, one in logprobs], prompt_logprobs)

    def _logprobs(self, logits: Tensor, step: StepRows, choice: Choice) -> list[tuple[int, TokenLogprobs]]:
        """Of the chosen tokens, by index; logits [S, V] are the raw ones of requests, all of which yield a token."""
        counts = self._states.logprobs[step.rows]
        asked = np.flatnonzero((counts != OFF) & choice.finite)
        found: list[tuple[int, TokenLogprobs]] = []
        for first in range(0, len(asked), SLICE):
            some = asked[first : first + SLICE]
            entries, _ = token_logprobs(logits[torch.from_numpy(some)], torch.from_numpy(choice.tokens[some]), counts[some])
            found += zip(some.tolist(), entries, strict=True)
        return found

    def _prompt_logprobs(
        self, hidden: Tensor, step: StepRows, spans: list[PromptSpan], finite: npt.NDArray[np.bool_]
    ) -> list[tuple[int, int, list[TokenLogprobs]]]:
        """Of the tokens behind each position of the spans, whose hidden states these are; marks requests as not finite."""
        found: list[tuple[int, int, list[TokenLogprobs]]] = []
        offset = 0
        for span in spans:
            row, entries = step.rows[span.index], list[TokenLogprobs]()
            count = self._states.prompt_logprobs[row]
            for start in range(span.start, span.end, SLICE):
                end = min(start + SLICE, span.end)
                tokens = torch.from_numpy(self._states.tokens[row, start + 1 : end + 1].astype(np.int64))
                logits = self._model.compute_logits(hidden[offset : offset + end - start])
                some, numbers = token_logprobs(logits, tokens, np.full(end - start, count))
                entries += some
                finite[span.index] &= numbers.all()
                offset += end - start
            found.append((span.index, span.start + 1, entries))
        return found

    def _scrub(self, step: StepRows, index: int) -> NonFiniteLogitsError:
        """Clean the blocks of a request whose logits are no numbers."""
        assert self._cache is not None
        row, end = int(step.rows[index]), int(step.ends[index])
        used = -(-end // self._config.cache.block_size)
        self._cache.scrub(self._states.blocks[row, :used].tolist())
        return NonFiniteLogitsError(f"the model's output after {end} tokens is not finite")

    def _fail(self, step: StepRows, index: int, error: Exception, outcome: StepOutcome) -> None:
        row = int(step.rows[index])
        self._states.failed[row] = True
        self._processors.leave(row)
        outcome.fail(int(step.indices[index]), error)


def _too_many(size: int) -> str:
    return (
        f"logprobs and prompt_logprobs would make {size} bytes in this step, of at most {MAX_BYTES} for all its requests: ask "
        "for fewer than the whole vocabulary, or set a lower max_num_batched_tokens"
    )
