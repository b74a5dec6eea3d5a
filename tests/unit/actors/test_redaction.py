"""What a person may see of a message without having been told to look at prompts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from ringpost.actors.redaction import _OPEN, plain
from ringpost.ipc.codec import Codec
from ringpost.ipc.messages.base import Message
from ringpost.ipc.messages.control import FromActor, ToActor
from ringpost.ipc.messages.load import LoadMessage
from ringpost.ipc.messages.outputs import OutputMessage, StepOutputs, TokenDelta
from ringpost.ipc.messages.payload import Payload
from ringpost.ipc.messages.plans import PlanMessage, SampleMask
from ringpost.ipc.messages.requests import AddRequest, CacheKey, RequestMessage
from ringpost.ipc.messages.results import ResultMessage
from ringpost.ipc.messages.sampling import SamplingParams

GOLDEN = Path(__file__).parents[2] / "arch" / "golden_messages.txt"
UNIONS: list[Any] = [ToActor, FromActor, OutputMessage, PlanMessage, RequestMessage, ResultMessage, LoadMessage]
MEMBERS = {member.__name__: union for union in UNIONS for member in get_args(union)}

# What must be hidden, once more and independently. Every other field of every message is shown.
PRIVATE = {
    "AddRequest": {"prompt", "output", "eos_token_ids", "cache_salt"},
    "CacheKey": {"key"},
    "NewRow": {"tokens"},
    "RowTokens": {"tokens"},
    "SampleMask": {"masks"},
    "SamplingParams": {
        *("stop_token_ids", "logit_bias", "stop", "bad_words", "bad_words_token_ids", "allowed_token_ids", "extra_args"),
    },
    "StepResult": {"tokens", "logprobs", "prompt_logprobs"},
    "TokenDelta": {"tokens", "stop_reason", "logprobs", "prompt_logprobs"},
}


class Novel(Message, frozen=True):
    """A message that nobody has thought about yet."""

    text: str
    number: int
    tokens: list[int]
    nested: CacheKey
    several: list[CacheKey]
    mapping: dict[str, int]
    absent: str | None = None


def golden(name: str) -> Any:
    """A message of this type in which every field says something."""
    lines = [line for line in GOLDEN.read_text(encoding="ascii").splitlines() if line.startswith(f"{name} ")]
    encoded = bytes.fromhex(lines[-1].partition(" ")[2])
    return Codec[Any](MEMBERS[name]).decode_parts([memoryview(part) for part in (encoded, b"one", b"two")])


def structs(value: Any, shown: Any) -> Iterator[tuple[msgspec.Struct, dict[str, Any]]]:
    """Every struct in a message, with what is shown of it."""
    if isinstance(value, msgspec.Struct):
        assert list(shown) == list(value.__struct_fields__)
        yield value, shown
        for name, field in shown.items():
            yield from structs(getattr(value, name), field) if isinstance(field, list | dict) else ()
    elif isinstance(value, list | tuple):
        for item, its_shown in zip(value, shown, strict=True):
            yield from structs(item, its_shown)


def hidden(shown: dict[str, Any]) -> set[str]:
    return {name for name, value in shown.items() if isinstance(value, str) and value.startswith("<")}


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_what_was_said_is_hidden_and_all_else_is_shown(name: str) -> None:
    """Fails for a new field or message: name it in actors/redaction.py if it tells nothing of what was said, else above."""
    message = golden(name)
    for value, shown in structs(message, plain(message)):
        assert hidden(shown) == PRIVATE.get(type(value).__name__, set()), type(value).__name__


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_prompts_are_shown_to_who_asks_for_them(name: str) -> None:
    message = golden(name)
    found = list(structs(message, plain(message, prompts=True)))
    assert all(hidden(shown) <= {"masks", "top_ids", "top_logprobs"} for _, shown in found)
    assert msgspec.json.encode(plain(message, prompts=True))


def test_what_nobody_has_thought_about_is_hidden() -> None:
    key = CacheKey(4711, "secret")
    assert plain(Novel("secret", 4711, [4711] * 3, key, [key], {"secret": 4711})) == {
        "text": "<6 characters>",
        "number": "<int>",
        "tokens": "<3 token ids>",
        "nested": "<CacheKey>",
        "several": "<1 entry>",
        "mapping": "<1 entry>",
        "absent": None,
    }


def test_how_much_there_was_is_told() -> None:
    params = SamplingParams(logit_bias={1: 2.0, 3: 4.0}, stop_token_ids=[5])
    shown = plain(AddRequest(1, "mine", list(range(37)), params, 0.5, cache_salt="s", cache_keys=(CacheKey(0, "adapter"),)))
    assert (shown["prompt"], shown["output"], shown["cache_salt"]) == ("<37 token ids>", [], "<1 character>")
    assert shown["cache_keys"] == [{"position": 0, "key": "<7 characters>"}]
    assert (shown["params"]["logit_bias"], shown["params"]["stop_token_ids"]) == ("<2 entries>", "<1 token id>")
    assert (shown["params"]["output_kind"], shown["external_id"]) == ("cumulative", "mine")


def test_whether_a_stop_string_or_a_token_ended_it_is_all_that_is_told() -> None:
    deltas = [TokenDelta(1, 0, [5], "stop", reason) for reason in ("\n\nUser:", 5, None)]
    shown = plain(StepOutputs(1, deltas))["deltas"]
    assert [delta["stop_reason"] for delta in shown] == ["<7 characters>", "<int>", None]
    assert [delta["stop_reason"] for delta in plain(StepOutputs(1, deltas), prompts=True)["deltas"]] == ["\n\nUser:", 5, None]


def test_payloads_are_never_shown() -> None:
    mask = SampleMask(1, [0], Payload(b"x" * 100))
    for prompts in (True, False):
        assert plain(mask, prompts=prompts) == {"step": 1, "rows": [0], "masks": "<100 bytes>"}


@pytest.mark.parametrize("kind", _OPEN, ids=lambda kind: kind.__name__)
def test_the_fields_that_are_shown_exist(kind: type[msgspec.Struct]) -> None:
    assert set(_OPEN[kind].split()) <= set(kind.__struct_fields__)
