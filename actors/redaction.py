"""Messages as plain data for people to read, without what users and the model said."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from ..ipc.messages.control import ActorReady, Drain, Hello, Reattach, Stop
from ..ipc.messages.descriptions import WorkerDescription
from ..ipc.messages.failure import Failure
from ..ipc.messages.load import LoadStats, WaveState
from ..ipc.messages.outputs import EngineDescription, StepOutputs, TokenDelta, TokenLogprobs, UtilityReply
from ..ipc.messages.payload import Payload
from ..ipc.messages.plans import DescribeWorker, InitCache, NewRow, Reset, RowTokens, SampleMask, StepPlan, StopWorker
from ..ipc.messages.requests import (
    Abort,
    AddRequest,
    CacheKey,
    CloseSession,
    DescribeEngine,
    Fork,
    PauseGeneration,
    ResetPrefixCache,
    Resume,
    ResumeGeneration,
    Sibling,
    Truncate,
)
from ..ipc.messages.results import CallResult, PromptLogprobs, RowFailure, StepResult, WorkerReady
from ..ipc.messages.sampling import RepetitionDetectionParams, SamplingParams

# The fields that may be shown. Whatever is not named here is hidden, so a new field or message is hidden until somebody has
# thought about it. Token ids are text, of prompts and of answers; what errors say is meant for logs, as are callers' ids.
_OPEN: dict[type, str] = {
    # to and from the supervisor
    Reattach: "peer epoch reason",
    Drain: "seconds",
    Stop: "",
    Hello: "actor pid epoch",
    ActorReady: "actor num_blocks seconds epoch",
    Failure: "actor pid kind message traceback request",
    # requests
    AddRequest: "request external_id params arrival priority cache_keys deaths deaths_alone siblings session base",
    CacheKey: "position",
    Sibling: "request seed",
    Truncate: "session length",
    Fork: "session child length",
    CloseSession: "session",
    Abort: "request",
    Resume: "epoch",
    ResetPrefixCache: "call preempt_running",
    DescribeEngine: "call workers",
    PauseGeneration: "call mode clear_cache",
    ResumeGeneration: "call",
    SamplingParams: "temperature top_p top_k min_p seed max_tokens ignore_eos output_kind skip_special_tokens min_tokens n "
    "presence_penalty frequency_penalty repetition_penalty include_stop_str_in_output logprobs prompt_logprobs flat_logprobs "
    "detokenize spaces_between_special_tokens stream_interval repetition_detection skip_reading_prefix_cache",
    RepetitionDetectionParams: "max_pattern_size min_pattern_size min_count",
    # outputs
    StepOutputs: "step deltas",
    TokenDelta: "request position finish_reason cached_tokens scheduled prompt_start queued preemptions",
    TokenLogprobs: "",
    UtilityReply: "call ok message description",
    EngineDescription: "running waiting num_blocks free_blocks steps parked paused sessions sessions_evicted phases workers",
    # plans
    StepPlan: "step new rows starts counts blocks sample appended late_mask copies",
    NewRow: "row request prompt_length blocks params",
    RowTokens: "row start",
    SampleMask: "step rows",
    InitCache: "num_blocks",
    Reset: "epoch",
    DescribeWorker: "call",
    StopWorker: "",
    # results
    WorkerReady: "rank num_blocks epoch",
    StepResult: "step failures",
    PromptLogprobs: "index start",
    RowFailure: "index kind message traceback",
    CallResult: "call rank description",
    WorkerDescription: "rank pid device dtype num_threads weight_bytes cache_bytes steps phases",
    # boards
    LoadStats: "core running waiting used_blocks num_blocks preemptions prefix_queries prefix_hits",
    WaveState: "wave running",
}


def plain(value: Any, *, prompts: bool = False) -> Any:
    """A message or a part of one as dicts, lists and scalars; structs by their fields' names. Payloads are never shown.

    Without `prompts`, what is not known to be harmless is replaced by a text like "<37 token ids>".
    """
    match value:
        case msgspec.Struct():
            shown = set(_OPEN.get(type(value), "").split())
            fields = [(name, getattr(value, name)) for name in value.__struct_fields__]
            return {
                name: plain(field, prompts=prompts) if prompts or name in shown else _hidden(field) for name, field in fields
            }
        case Mapping():
            return {str(key): plain(item, prompts=prompts) for key, item in value.items()}
        case list() | tuple():
            return [plain(item, prompts=prompts) for item in value]
        case Payload() | bytes() | memoryview():
            return _hidden(value)
        case Enum():
            return value.value
        case _:
            return value


def _hidden(value: Any) -> Any:
    """What kind of value it is and how much of it; nothing and emptiness as they are."""
    match value:
        case None | "" | []:
            return value
        case Payload() | bytes() | memoryview():
            return f"<{_counted(len(value), 'byte')}>"
        case str():
            return f"<{_counted(len(value), 'character')}>"
        case list() | tuple() if all(isinstance(item, int) for item in value):
            return f"<{_counted(len(value), 'token id')}>"
        case list() | tuple() | Mapping():
            return f"<{_counted(len(value), 'entry', 'entries')}>"
        case _:
            return f"<{type(value).__name__}>"


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
