"""From a step's raw logits to its tokens: masks, biases, custom processors and penalties in their order, then the sampler."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..kernels.interface import KernelSet
from .batch import StepRows, logit_changes, sampling_batch
from .models.registry import ChoosingLM
from .processor_chain import LogitsProcessorError, ProcessorChain
from .sampler import Sampler
from .states import RowStates


class NoTokenLeft(ValueError):
    """What a request asks for takes out every token."""

    def __init__(self, *, processed: bool) -> None:
        """`processed`: whether logits processors may have had a part in it."""
        rules = "allowed_token_ids, bad_words, min_tokens with the stop tokens"
        rules += " and logits processors" if processed else ""
        super().__init__(f"no token is left to choose: {rules} together take out all of them")


class UnusableLogits(ValueError):
    """What a request asks for makes logits that are no numbers."""


@dataclass(frozen=True)
class Choice:
    """What was chosen for S rows."""

    tokens: npt.NDArray[np.int64]  # [S]
    finite: npt.NDArray[np.bool_]  # [S]: whether the raw logits are numbers; if not, the token means nothing
    errors: dict[int, Exception]  # of further rows, by index, whose token means nothing


class Chooser:
    """Chooses tokens for rows by their parameters."""

    def __init__(self, states: RowStates, kernels: KernelSet, processors: ProcessorChain) -> None:
        self._states = states
        self._sampler = Sampler(kernels)
        self._processors = processors

    def choose(self, logits: Tensor, step: StepRows) -> Choice:
        """A token for each request of a step, all of which yield one; logits [S, V] of any floating dtype stay as they are.

        What fails for the batch is done again request by request; whatever one fails with alone is its error.
        """
        try:
            return self._choose(logits, step)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not take the other requests down
            if len(step.rows) == 1:
                finite = logits.amax(dim=-1).isfinite().numpy()
                return Choice(np.zeros(1, dtype=np.int64), finite, {0: error})
        alone = [self.choose(logits[row : row + 1], step.select([row])) for row in range(len(step.rows))]
        return Choice(
            np.concatenate([one.tokens for one in alone]),
            np.concatenate([one.finite for one in alone]),
            {row: error for row, one in enumerate(alone) for error in one.errors.values()},
        )

    def is_plain(self, step: StepRows) -> bool:
        """Whether all requests yield a token, of logits that nothing changes or filters, and that nobody is to see."""
        if not (self._states.plain[step.rows].all() and step.sampled.all()):
            return False
        return not (self._processors and self._processors.works_on(self._states.greedy[step.rows]))

    def choose_plainly(self, model: ChoosingLM, hidden: Tensor, step: StepRows) -> Choice:
        """A token for each request of a plain step, from its hidden states [S, hidden]; nobody sees the logits."""
        states, rows = self._states, step.rows
        temperature, seeds = torch.from_numpy(states.temperature[rows]), torch.from_numpy(states.seeds[rows])
        tokens, logits = model.choose(hidden, temperature, seeds, torch.from_numpy(step.ends))
        return Choice(tokens.numpy(), np.isfinite(logits.numpy()), {})

    def _choose(self, logits: Tensor, step: StepRows) -> Choice:
        logits = logits.float()  # a registered model may give narrow ones
        batch = sampling_batch(step, self._states)
        changed = self._changed(logits, step)
        drawn = self._sampler.sample(logits if changed is None else changed, batch)
        if changed is None:
            # A NaN or an infinity wins any argmax, so looking at the winner finds it in the row.
            tokens = drawn.numpy()
            return Choice(tokens, np.isfinite(logits.numpy()[np.arange(len(tokens)), tokens]), {})
        finite = logits.amax(dim=-1).isfinite()
        best = _at(changed, drawn)
        bad = torch.nonzero(finite & ~best.isfinite()).squeeze(-1).tolist()
        errors = {row: self._unusable(float(best[row])) for row in bad}
        return Choice(drawn.numpy(), finite.numpy(), errors)

    def _changed(self, logits: Tensor, step: StepRows) -> Tensor | None:
        """A float32 copy with all that requests change; None if that is nothing."""
        states, rows = self._states, step.rows
        changes, greedy = logit_changes(step, states), states.greedy[rows]
        processed = self._processors.works_on(greedy)
        listed, penalized = states.allow_lists.used[rows].any(), states.penalties.used[rows].any()
        if changes is None and not (processed or listed or penalized):
            return None
        changed = logits.to(torch.float32, copy=True)
        states.allow_lists.apply(changed, rows)
        if changes is not None:
            changes.take_out(changed)
            changes.add_biases(changed)
        if processed:
            changed = self._processors.apply(changed, rows, greedy)
            # What may not be drawn stays out whatever a processor makes of it.
            states.allow_lists.apply(changed, rows)
            if changes is not None:
                changes.take_out(changed)
        states.penalties.apply(changed, rows, step.ends, states.tokens, states.prompt_lengths)
        return changed

    def _unusable(self, best: float) -> Exception:
        if best == float("-inf"):
            return NoTokenLeft(processed=bool(self._processors))
        if self._processors:
            return LogitsProcessorError(
                f"the logits processors made a logit {best}; only minus infinity, to take a token out, is allowed"
            )
        return UnusableLogits(f"logit_bias, repetition_penalty and the other penalties made a logit {best}")


def _at(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.gather(1, tokens.unsqueeze(-1)).squeeze(-1)
