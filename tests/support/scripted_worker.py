"""A worker process without a model: the real actor over a runner whose tokens a test can foretell.

`tokens_of` foretells them. They are bytes of the tiny model's tokenizer, and never an end of sequence. A greedy token depends
on all tokens before it, as the KV holds them, so that a wrong context changes it; any other one on seed and position.
`said_of` foretells the logprobs of tokens, and of those of a prompt.

It follows a script of faults, which `script_of` of faults.py brings into its process.
"""

import os
import time
import zlib
from collections.abc import Collection, Sequence

from fault_script import TOLD, Faults, faults_here
from msgspec.structs import replace
from slot_worker import Row, SlotWorker, kv_after, logprobs_of

from ringpost.actors.boot import Boot, Control, run_actor
from ringpost.actors.worker.actor import serve
from ringpost.ipc.messages.descriptions import WorkerDescription
from ringpost.ipc.messages.outputs import TokenLogprobs
from ringpost.ipc.messages.plans import StepPlan
from ringpost.ipc.messages.requests import AddRequest
from ringpost.ipc.messages.results import StepResult
from ringpost.ipc.messages.sampling import GREEDY_BELOW, SamplingParams

NUM_BLOCKS = 2000
BROKEN = "broken"  # in the log of faults: what a plan says does not hold
_FIRST, _END = 3, 131  # ids of bytes in the vocabulary of tiny_checkpoint, whose import would take longer than a start
VOCABULARY = 268  # tokens in it


def _draw(params: SamplingParams, position: int, context: int) -> int:
    """Token `position` of an output, where the last token's KV is `context`."""
    key = str(context) if params.temperature < GREEDY_BELOW else f"{params.seed}:{position}"
    drawn = zlib.crc32(key.encode())
    # As the real one, it samples no stop token before there are min_tokens.
    stops = params.stop_token_ids if position < params.min_tokens else ()
    candidates = [token for token in range(_FIRST, _END) if token not in stops]
    return candidates[drawn % len(candidates)]


def tokens_of(prompt: Sequence[int], params: SamplingParams) -> list[int]:
    """The whole answer to a request, which has a seed or is greedy, and ends by its own parameters."""
    assert params.max_tokens is not None
    context = hash("")
    for token in prompt:
        context = kv_after(context, token)
    tokens: list[int] = []
    while len(tokens) < params.max_tokens:
        tokens.append(_draw(params, len(tokens), context))
        if tokens[-1] in params.stop_token_ids and len(tokens) > params.min_tokens:
            break
        context = kv_after(context, tokens[-1])
    return tokens


def said_of(prompt: Sequence[int], tokens: Sequence[int], count: int) -> list[TokenLogprobs]:
    """The logprobs of these tokens, which follow the prompt, with so many of the likeliest; none of a prompt's first token, so
    those of a prompt are `said_of(prompt[:1], prompt[1:], count)`.
    """
    return [logprobs_of(token, position, count, VOCABULARY) for position, token in enumerate(tokens, len(prompt))]


class ScriptedRunner(SlotWorker):
    """A Runner. A plan that the rows contradict is noted in the log of faults, and ends the process."""

    def __init__(self, boot: Boot, rank: int, faults: Faults) -> None:
        config = boot.config
        blocks = config.cache.num_blocks_override or NUM_BLOCKS
        super().__init__(config.cache.block_size, blocks, config.scheduler.max_num_seqs, requests={}, vocabulary=VOCABULARY)
        self._rank = rank
        self._faults = faults
        self._steps = 0

    def max_blocks(self) -> int:
        return self.num_blocks

    def init_cache(self, num_blocks: int) -> None:
        assert num_blocks == self.num_blocks

    def reset(self) -> None:
        self.rows.clear()

    def describe(self) -> WorkerDescription:
        return WorkerDescription(self._rank, os.getpid(), "none", "int", 1, 0, 0, self._steps)

    def execute(self, plan: StepPlan, failing: Collection[int] = ()) -> StepResult:
        for new in plan.new:
            self.requests[new.request] = AddRequest(new.request, "", new.tokens[: new.prompt_length], new.params, 0.0)
        numbers = {new.row: new.request for new in plan.new}
        requests = [self.requests[numbers[row]] if row in numbers else self.rows[row].request for row in plan.rows]
        failing = [index for index, request in enumerate(requests) if self._faults.computing(request)]
        time.sleep(self._faults.script.step_seconds)
        try:
            result = super().execute(plan, failing)
        except (AssertionError, LookupError):
            self._faults.note(-1, BROKEN)
            raise
        self._steps += 1
        failures = [replace(failure, kind="FaultStruck", message=TOLD) for failure in result.failures]
        return replace(result, failures=failures)

    def sample(self, row: Row) -> int:
        position = len(row.tokens) - len(row.request.prompt)
        context = self.slots[self.slot(row, len(row.tokens) - 1)]
        token = _draw(row.request.params, position, context)
        self._faults.sampling(row.request, token)
        return token


async def _main(boot: Boot, control: Control) -> None:
    await serve(boot, control, lambda rank: ScriptedRunner(boot, rank, faults_here()))


if __name__ == "__main__":
    run_actor(_main)
