"""What becomes of the requests of a step, until it is a StepResult."""

import traceback

import msgspec
import numpy as np

from ..ipc.messages.outputs import TokenLogprobs
from ..ipc.messages.plans import StepPlan
from ..ipc.messages.results import PromptLogprobs, RowFailure, StepResult

FAILED_TOKEN = -1  # stands for a failed row's token in StepResult.tokens


class StepOutcome:
    """Tokens, logprobs and failures by index into the plan's rows."""

    def __init__(self, plan: StepPlan) -> None:
        self._plan = plan
        self.tokens = np.full(len(plan.rows), FAILED_TOKEN, dtype=np.int64)
        self.logprobs: dict[int, TokenLogprobs] = {}
        self.prompt_logprobs: list[PromptLogprobs] = []
        self._failures: list[RowFailure] = []

    def fail(self, index: int, error: Exception) -> None:
        """One request failed."""
        trace = "".join(traceback.format_exception(error))
        self._failures.append(RowFailure(index, type(error).__name__, str(error)[:200], trace[-2000:]))

    def failed_before(self, index: int) -> None:
        """A request failed in a step that this one was planned on."""
        self._failures.append(RowFailure(index, "RowFailed", "a step before this one failed for the request"))

    def result(self) -> StepResult:
        """The tokens parallel to the plan's `sample`."""
        plan = self._plan
        # One traceback tells the cause, and the result stays small enough to be sent however many fail.
        failures = self._failures[:1] + [msgspec.structs.replace(failure, traceback="") for failure in self._failures[1:]]
        return StepResult(
            step=plan.step,
            tokens=self.tokens[plan.sample].tolist(),
            failures=failures,
            logprobs=[self.logprobs.get(index) for index in plan.sample] if self.logprobs else [],
            prompt_logprobs=self.prompt_logprobs,
        )
