"""Fields that a request may hold: what of them reaches the engine, and what they are without a value."""

import json
from pathlib import Path
from typing import Any

import pytest
from api_client import CHAT, COMPLETIONS, Json
from scripted_engine import End, ScriptedEngine, token_ids
from served_app import AppClient, served
from tiny_checkpoint import write_tiny_llama

from ringpost import SamplingParams
from ringpost.actors.api.protocol import ChatCompletionRequest, CompletionRequest
from ringpost.ipc.messages.errors import ParameterError
from ringpost.ipc.messages.sampling import RepetitionDetectionParams

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

BODIES: dict[str, Json] = {COMPLETIONS: {"prompt": "hi"}, CHAT: {"messages": [{"role": "user", "content": "hi"}]}}
# Field, value, and what the engine's parameters then hold, where that is another name or value.
HANDED_ON: list[tuple[str, Any, Json]] = [
    ("n", 3, {}),
    ("max_tokens", 5, {}),
    ("min_tokens", 2, {}),
    ("temperature", 0.5, {}),
    ("top_p", 0.5, {}),
    ("top_k", 5, {}),
    ("min_p", 0.5, {}),
    ("seed", 5, {}),
    ("presence_penalty", 0.5, {}),
    ("frequency_penalty", -2, {}),
    ("repetition_penalty", 1.5, {}),
    ("logit_bias", {"5": 200}, {"logit_bias": {5: 100.0}}),
    ("allowed_token_ids", [5, 6], {"allowed_token_ids": (5, 6)}),
    ("bad_words", ["a", "b"], {"bad_words": ("a", "b")}),
    ("bad_words", [], {"bad_words": ()}),
    ("bad_words_token_ids", [[5, 6], [7]], {"bad_words_token_ids": ((5, 6), (7,))}),
    ("detokenize", False, {}),
    ("stop", "xyz", {"stop": ("xyz",)}),
    ("stop", ["xyz", "zyx"], {"stop": ("xyz", "zyx")}),
    ("stop", [], {"stop": ()}),
    ("stop_token_ids", [7], {"stop_token_ids": (7,)}),
    ("include_stop_str_in_output", True, {}),
    ("ignore_eos", True, {}),
    ("prompt_logprobs", 0, {}),
    ("skip_special_tokens", False, {}),
    ("spaces_between_special_tokens", False, {}),
    ("stream_interval", 4, {}),
    (
        "repetition_detection",
        {"max_pattern_size": 4, "min_count": 3},
        {"repetition_detection": RepetitionDetectionParams(max_pattern_size=4, min_count=3)},
    ),
    ("vllm_xargs", {"a": [1, "b"], "c": {"d": None}}, {"extra_args": {"a": [1, "b"], "c": {"d": None}}}),
]
# What is not the engine's, or not by this name.
OURS = {
    *("model", "stream", "stream_options", "return_token_ids", "return_tokens_as_token_ids", "request_id", "priority"),
    *("cache_salt", "prompt", "best_of", "echo", "messages", "logprobs", "top_logprobs", "max_completion_tokens"),
}
UNOFFERED = {"output_kind", "flat_logprobs", "skip_reading_prefix_cache"}


async def test_no_field_is_forgotten() -> None:
    named = {field for field, _, _ in HANDED_ON}
    for kind in (CompletionRequest, ChatCompletionRequest):
        assert set(kind.__struct_fields__) - OURS == named
    theirs = {"extra_args" if field == "vllm_xargs" else field for field in named}
    assert set(SamplingParams.__struct_fields__) - UNOFFERED - {"logprobs"} == theirs


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("field", "value", "expected"), HANDED_ON)
async def test_a_field_reaches_the_engine(
    api: AppClient, engine: ScriptedEngine, path: str, field: str, value: Any, expected: Json
) -> None:
    body = BODIES[path] | {"max_tokens": 20, field: value}
    assert (await api.call(path, body)).status == 200
    for name, held in (expected or {field: value}).items():
        assert getattr(engine.requests[-1].params, name) == held
    assert (await api.call(path, body | {"stream": True})).events


@pytest.mark.parametrize("path", BODIES)
async def test_without_a_field_the_engines_own_default_holds(api: AppClient, engine: ScriptedEngine, path: str) -> None:
    assert (await api.call(path, BODIES[path])).status == 200
    longest = 16 if path == COMPLETIONS else None
    assert engine.requests[-1].params == SamplingParams(max_tokens=longest, output_kind="final_only")  # type: ignore[arg-type]


@pytest.mark.parametrize("path", BODIES)
async def test_the_models_own_defaults(tmp_path: Path, path: str) -> None:
    model = write_tiny_llama(tmp_path)
    theirs = {"temperature": 0.25, "top_k": 7, "max_new_tokens": 3}
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": 2} | theirs))
    engine = ScriptedEngine(str(model))
    async with served(engine) as api:
        await api.ask(path, BODIES[path])
        params = engine.requests[-1].params
        assert (params.temperature, params.top_k, params.max_tokens) == (0.25, 7, 3)
        await api.ask(path, BODIES[path] | {"temperature": 0.5, "top_k": 0, "max_tokens": 9})
        params = engine.requests[-1].params
        assert (params.temperature, params.top_k, params.max_tokens) == (0.5, 0, 9)
        await api.ask(path, BODIES[path] | {"temperature": None, "max_tokens": None})
        params = engine.requests[-1].params
        assert (params.temperature, params.max_tokens) == (0.25, 3)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("stop", "include", "text", "reason"),
    [
        (["FD", "EF"], False, "D", "EF"),
        (["EF", "FD"], False, "D", "EF"),
        (["FD"], True, "DEFD", "FD"),
        (["xyz"], False, "DEFDEF!", None),
        ("FDEFD", False, "DEFDEF!", None),
    ],
)
async def test_stop_strings(
    api: AppClient, engine: ScriptedEngine, path: str, stop: Any, include: bool, text: str, reason: str | None
) -> None:
    engine.answers[None] = ["DEF", "DEF", End("!")]
    body = BODIES[path] | {"stop": stop, "include_stop_str_in_output": include}
    finish = "length" if reason is None else "stop"
    (choice,) = (await api.call(path, body)).json["choices"]
    said = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
    assert (said, choice["finish_reason"], choice["stop_reason"]) == (text, finish, reason)
    parts = [event["choices"][0] for event in (await api.call(path, body | {"stream": True})).events]
    assert "".join(part.get("text") or part.get("delta", {}).get("content") or "" for part in parts) == text
    assert (parts[-1]["finish_reason"], parts[-1]["stop_reason"]) == (finish, reason)
    assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)


@pytest.mark.parametrize("path", BODIES)
async def test_an_answer_that_goes_in_circles(api: AppClient, engine: ScriptedEngine, path: str) -> None:
    engine.answers[None] = ["abab", End("", "repetition")]
    body = BODIES[path] | {"repetition_detection": {"max_pattern_size": 2}}
    assert (await api.call(path, body)).json["choices"][0]["finish_reason"] == "repetition"
    *_, last = (await api.call(path, body | {"stream": True})).events
    assert last["choices"][0]["finish_reason"] == "repetition"
    assert (await api.metrics()).value("ringpost:request_success_total", finished_reason="repetition") == 2


@pytest.mark.parametrize("path", BODIES)
async def test_fewer_events_than_tokens(api: AppClient, engine: ScriptedEngine, path: str) -> None:
    engine.answers[None] = [*"abcdefg", End("h")]
    body = BODIES[path] | {"stream": True, "stream_interval": 3}
    choices = [event["choices"][0] for event in (await api.call(path, body)).events]
    texts = [choice.get("text") or choice.get("delta", {}).get("content") for choice in choices]
    assert [text for text in texts if text] == ["a", "bcd", "efg", "h"]


@pytest.mark.parametrize("path", BODIES)
async def test_special_tokens_are_shown_if_asked_for(api: AppClient, engine: ScriptedEngine, path: str) -> None:
    """As is the text of the token that ended the answer."""
    engine.answers[None] = ["a", End("", "stop")]
    for fields, text in (
        ({}, "a"),
        ({"skip_special_tokens": False}, "a"),
        ({"include_stop_str_in_output": True}, "a"),
        ({"include_stop_str_in_output": True, "skip_special_tokens": False}, "a<|im_end|>"),
    ):
        (choice,) = (await api.call(path, BODIES[path] | fields)).json["choices"]
        assert (choice["text"] if path == COMPLETIONS else choice["message"]["content"]) == text
    engine.answers[None] = [End("", "stop", token_ids(".")[0])]
    for include, text in ((False, ""), (True, ".")):
        answer = await api.ask(path, BODIES[path] | {"include_stop_str_in_output": include})
        assert answer.first.text == text


@pytest.mark.parametrize("path", BODIES)
async def test_an_answer_that_its_request_has_left_no_token(api: AppClient, engine: ScriptedEngine, path: str) -> None:
    """It is the client's mistake however late it shows, by the client's name of the field."""
    theirs = {"allowed_token_ids": "allowed_token_ids", "prompt": "prompt" if path == COMPLETIONS else "messages"}
    for ours, named in theirs.items():
        engine.answers[None] = ["a", ParameterError(f"{ours} must be something else", ours)]
        *_, event = (await api.call(path, BODIES[path] | {"stream": True})).events
        whole = await api.call(path, BODIES[path])
        assert whole.status == 400
        assert event["error"] == whole.error
        assert (whole.error["param"], whole.error["message"]) == (named, f"{named} must be something else")
