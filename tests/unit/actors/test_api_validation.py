"""Requests that are refused: by a status, and in words that name the field and the value."""

import json
from collections.abc import AsyncIterator
from typing import Any, get_type_hints

import msgspec
import pytest
import pytest_asyncio
from api_client import CHAT, COMPLETIONS
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_completion_create_params
from scripted_engine import ScriptedEngine
from served_app import AppClient, served

from ringpost.actors.api import not_offered
from ringpost.actors.api.protocol import ChatCompletionRequest, CompletionRequest

FIELDS = {COMPLETIONS: CompletionRequest.__struct_fields__, CHAT: ChatCompletionRequest.__struct_fields__}
SCALARS: dict[str, list[Any]] = {
    "model": [5, [], {}, True],
    "stream": [1, "true", []],
    "stream_options": [5, [], "x"],
    "n": ["1", 1.5, 1.0, True, []],
    "max_tokens": ["5", 1.5, 1.0, True, [], {}],
    "min_tokens": ["5", 1.5, False],
    "temperature": ["1", True, []],
    "presence_penalty": ["1", True, []],
    "frequency_penalty": ["1", False],
    "repetition_penalty": ["1", True],
    "stop": [5, {}, True],
    "include_stop_str_in_output": [0, "x"],
    "bad_words": ["x", 5, {}],
    "bad_words_token_ids": ["x", 5, {}],
    "allowed_token_ids": ["x", 5, {}],
    "prompt_logprobs": ["1", 1.5, True],
    "spaces_between_special_tokens": [1, "x"],
    "stream_interval": ["1", 1.5, True],
    "repetition_detection": [5, [], "x", True],
    "vllm_xargs": [5, [], "x"],
    "return_tokens_as_token_ids": [1, "x"],
    "top_p": ["1", True, {}],
    "top_k": ["1", 1.5, True],
    "min_p": ["1", False],
    "seed": ["1", 1.5, True],
    "logit_bias": [5, [1], "x"],
    "stop_token_ids": [5, "x", {}],
    "ignore_eos": [0, "x"],
    "detokenize": [0, "x"],
    "skip_special_tokens": [1, "x"],
    "return_token_ids": [1, "x"],
    "request_id": [5, True, []],
    "priority": ["1", 1.5, True, []],
    "cache_salt": [5, True, []],
}
OUT_OF_RANGE: dict[str, list[Any]] = {
    "n": [0, -1, 1000, 2**64, 10**4000],
    "max_tokens": [0, -1, 2**64, 10**4000],
    "min_tokens": [-1, 2**64],
    "temperature": [-0.1, 2.1, 10**4000],
    "presence_penalty": [-2.1, 2.1],
    "frequency_penalty": [-2.1, 2.1],
    "repetition_penalty": [0, -1, 10**4000],
    "stop": ["", [""], ["a", ""], ["x" * 1025], ["x"] * 65],
    "bad_words": [[""], ["a"] * 257],
    "bad_words_token_ids": [[[]], [[-1]], [[5, 268]], [[2**64]]],
    "allowed_token_ids": [[], [-1], [268], [2**64]],
    "prompt_logprobs": [-1, -2, 21, 2**64],
    "stream_interval": [0, -1, 2**64],
    "vllm_xargs": [{"a": "x" * 2**16}],
    "top_p": [0, 1.1],
    "top_k": [-2, 2**64],
    "min_p": [-0.1, 1.1],
    "seed": [-2, 2**63, 2**64, 10**4000],
    "request_id": ["", "x" * 257, "a\nb", "a\u0000b"],
    "priority": [1, -1, 2**63, -(2**63) - 1, 2**64, 10**4000],
    "cache_salt": ["", "x" * 257],
    "logit_bias": [{"-1": 1}, {"268": 1}, {"x": 1}, {"1.5": 1}, {str(2**64): 1}],
    "stop_token_ids": [[-1], [268], [2**64], list(range(1025))],
}
NOT_OFFERED: dict[str, list[Any]] = {
    "top_logprobs": [1],
    "echo": [True],
    "suffix": ["x"],
    "tools": [[{}]],
    "tool_choice": ["required", {"type": "function"}],
    "response_format": [{"type": "json_object"}],
    "structured_outputs": [{"json": {}}],
    "chat_template_kwargs": [{"a": 1}],
    "continue_final_message": [True],
    "add_generation_prompt": [False],
    "use_beam_search": [True],
    "length_penalty": [0.5],
    "logits_processors": [["x"]],
    "guided_json": [{}],
    "guided_regex": ["a+"],
    "guided_choice": [["a", "b"]],
    "guided_grammar": ["root ::= 'a'"],
    "prompt_embeds": ["AAAA"],
    "modalities": [["text", "audio"], []],
    "audio": [{"voice": "x", "format": "wav"}],
    "web_search_options": [{}],
    "moderation": [{"model": "x"}],
    "functions": [[{"name": "f"}]],
    "function_call": [{"name": "f"}],
    "documents": [[{"title": "x"}]],
    "chat_template": ["{{ messages }}", ""],
    "truncate_prompt_tokens": [5, -1],
    "structural_tag": ["x"],
    "logprob_token_ids": [[1]],
    "prompt_logprob_token_ids": [[[1]]],
    "prompt_logprob_start": [1],
    "watermarking": [True],
    "thinking_token_budget": [5, 0],
    "kv_transfer_params": [{"do_remote_decode": True}],
    "ec_transfer_params": [{"a": 1}],
    "return_token_offsets": [True],
    "routed_experts_prompt_start": [1],
    "reasoning_effort": ["high", "none"],
    "include_reasoning": [False],
    "verbosity": ["low", "high"],
    "media_io_kwargs": [{"video": {"num_frames": 4}}],
    "mm_processor_kwargs": [{"num_crops": 4}],
    "return_prompt_text": [True],
}
NEUTRAL: dict[str, list[Any]] = {
    "top_logprobs": [0],
    "echo": [False],
    "suffix": [""],
    "tools": [[]],
    "tool_choice": ["none", "auto"],
    "response_format": [{"type": "text"}],
    "use_beam_search": [False],
    "length_penalty": [1, 1.0],
    "logits_processors": [[]],
    "modalities": [["text"]],
    "functions": [[]],
    "function_call": ["none", "auto"],
    "documents": [[]],
    "chat_template_kwargs": [{}],
    "add_generation_prompt": [True],
    "continue_final_message": [False],
    "prompt_logprob_start": [0],
    "watermarking": [False],
    "thinking_token_budget": [-1],
    "kv_transfer_params": [{}],
    "ec_transfer_params": [{}],
    "return_token_offsets": [False],
    "routed_experts_prompt_start": [0],
    "include_reasoning": [True],
    "verbosity": ["medium"],
    "media_io_kwargs": [{}],
    "mm_processor_kwargs": [{}],
    "return_prompt_text": [False],
}


@pytest_asyncio.fixture
async def api(tiny: str) -> AsyncIterator[AppClient]:
    async with served(ScriptedEngine(tiny, max_model_len=64)) as client:
        yield client


def bodies(fields: dict[str, Any]) -> list[tuple[str, bytes]]:
    """The same fields on both routes. Integers may be larger than Python writes."""
    written = "".join(f', "{name}": {written_value(value)}' for name, value in fields.items())
    prompts = ((COMPLETIONS, '"prompt": "hi"'), (CHAT, '"messages": [{"role": "user", "content": "hi"}]'))
    return [(path, f"{{{prompt}{written}}}".encode()) for path, prompt in prompts]


def written_value(value: Any) -> str:
    return "1" + "0" * 5000 if value == 10**4000 else json.dumps(value)


@pytest.mark.asyncio
@pytest.mark.parametrize("field", SCALARS)
async def test_a_value_of_a_wrong_type_is_named(api: AppClient, field: str) -> None:
    for value in SCALARS[field]:
        for path, body in bodies({field: value}):
            error = await api.refused(path, body)
            assert error["param"] == field
            assert error["message"].startswith(f"{field} must be ")
            assert error["message"].endswith(f"got {json.dumps(value)}")


@pytest.mark.asyncio
@pytest.mark.parametrize("field", [*SCALARS, *NOT_OFFERED])
async def test_null_is_like_leaving_a_field_out(api: AppClient, field: str) -> None:
    for path, body in bodies({field: None}):
        assert (await api.call(path, body)).status == 200


@pytest.mark.asyncio
@pytest.mark.parametrize("field", OUT_OF_RANGE)
async def test_a_value_out_of_range_is_named(api: AppClient, field: str) -> None:
    for value in OUT_OF_RANGE[field]:
        for path, body in bodies({field: value}):
            error = await api.refused(path, body)
            assert error["param"] == field
            assert error["message"].startswith(field)
            assert "got " in error["message"]


@pytest.mark.asyncio
async def test_the_newer_name_of_max_tokens(tiny: str) -> None:
    engine = ScriptedEngine(tiny, max_model_len=64)
    body = {"messages": [{"role": "user", "content": "hi"}]}
    async with served(engine) as api:
        for value in (0, -1, 2**64):
            error = await api.refused(CHAT, body | {"max_completion_tokens": value, "max_tokens": 5})
            assert error["param"] == "max_completion_tokens"
            assert error["message"].startswith("max_completion_tokens must be ")
            assert error["message"].endswith(f"got {value}")
        error = await api.refused(CHAT, body | {"max_completion_tokens": 3, "temperature": -1})
        assert error["param"] == "temperature"
        for fields, expected in (({"max_completion_tokens": 3, "max_tokens": 5}, 3), ({"max_tokens": 5}, 5), ({}, None)):
            await api.ask(CHAT, body | fields)
            assert engine.requests[-1].params.max_tokens == expected


@pytest.mark.asyncio
async def test_best_of_may_only_be_n(api: AppClient) -> None:
    for fields in ({"best_of": 1}, {"best_of": 2, "n": 2}, {"best_of": None, "n": 2}):
        assert (await api.call(COMPLETIONS, {"prompt": "hi", **fields})).status == 200
    for wrong in ({"best_of": 2}, {"best_of": 1, "n": 2}, {"best_of": "1"}, {"best_of": 10**30}):
        error = await api.refused(COMPLETIONS, {"prompt": "hi", **wrong})
        assert error["param"] == "best_of"
    assert (await api.call(CHAT, {"messages": [{"role": "user", "content": "hi"}], "best_of": 7})).status == 200


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"1" + b"0" * 5000])
async def test_a_number_beyond_all_bounds_is_named(api: AppClient, number: bytes) -> None:
    for field in (b"temperature", b"logit_bias", b"repetition_penalty"):
        value = b'{"5": ' + number + b"}" if field == b"logit_bias" else number
        error = await api.refused(COMPLETIONS, b'{"prompt": "hi", "' + field + b'": ' + value + b"}")
        assert error["param"] == field.decode()
        assert value[:50].decode() in error["message"]
    assert (await api.call(COMPLETIONS, b'{"prompt": "hi", "unknown": ' + number + b"}")).status == 200


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fields", "param", "named"),
    [
        ({"logit_bias": {"5": "x"}}, "logit_bias", '{"5": "x"}'),
        ({"logit_bias": {"5": None}}, "logit_bias", "null"),
        ({"stop_token_ids": [1, "x"]}, "stop_token_ids[1]", '"x"'),
        ({"stream": True, "stream_options": {"include_usage": 5}}, "stream_options.include_usage", "5"),
        ({"stream_options": {}}, "stream_options", "stream=true"),
        ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options", "stream=true"),
        ({"min_tokens": 9, "max_tokens": 5}, "min_tokens", "9"),
        ({"n": 2, "temperature": 0}, "n", "got 2"),
        ({"n": 2, "temperature": 1e-6}, "n", "got 2"),
        ({"vllm_xargs": {"a": 2**64}}, "vllm_xargs", "64 bits"),
        ({"stop": ["a", 5]}, "stop[1]", "5"),
        ({"bad_words": ["a", None]}, "bad_words[1]", "null"),
        ({"allowed_token_ids": [5, "5"]}, "allowed_token_ids[1]", '"5"'),
        ({"repetition_detection": {}}, "repetition_detection", "max_pattern_size"),
        ({"repetition_detection": {"max_pattern_size": 5, "foo": 1}}, "repetition_detection", "foo"),
        ({"repetition_detection": {"max_pattern_size": 0}}, "repetition_detection.max_pattern_size", "got 0"),
        ({"repetition_detection": {"max_pattern_size": 2, "min_count": 1}}, "repetition_detection.min_count", "got 1"),
    ],
)
async def test_a_mistake_inside_a_field_or_between_fields(api: AppClient, fields: Any, param: str, named: str) -> None:
    for path, body in bodies(fields):
        error = await api.refused(path, body)
        assert error["param"] == param
        assert named in error["message"]


@pytest.mark.asyncio
@pytest.mark.parametrize("field", NOT_OFFERED)
async def test_a_field_that_is_not_offered_is_refused(api: AppClient, field: str) -> None:
    for value in NOT_OFFERED[field]:
        for path, body in bodies({field: value}):
            if field in FIELDS[path]:
                continue
            error = await api.refused(path, body)
            assert error["param"] == field
            assert error["message"].startswith(f"{field} is not supported yet: ")
            assert written_value(value)[:100] in error["message"]


def test_each_field_that_is_not_offered_is_tested() -> None:
    assert NOT_OFFERED.keys() == not_offered._NEUTRAL.keys()
    assert NEUTRAL.keys() == {field for field, values in not_offered._NEUTRAL.items() if values}


@pytest.mark.asyncio
@pytest.mark.parametrize("field", NEUTRAL)
async def test_a_value_that_asks_for_nothing_is_taken(api: AppClient, field: str) -> None:
    for value in NEUTRAL[field]:
        for path, body in bodies({field: value}):
            assert (await api.call(path, body)).status == 200, value


@pytest.mark.asyncio
async def test_who_writes_special_tokens(api: AppClient) -> None:
    """The tokenizer in a completion, the template in a chat."""
    for adds, taken, refused in ((True, COMPLETIONS, CHAT), (False, CHAT, COMPLETIONS)):
        sent = dict(bodies({"add_special_tokens": adds}))
        assert (await api.call(taken, sent[taken])).status == 200
        error = await api.refused(refused, sent[refused])
        assert (error["param"], "not supported yet" in error["message"]) == ("add_special_tokens", True)


# Fields that may change who pays, what is kept or how fast it is, but not what is asked for; or only what is refused itself.
HARMLESS: dict[str, Any] = {
    "metadata": {"a": [None]},
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_key": "x",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "return_mm_kwargs": False,
    "safety_identifier": "x",
    "service_tier": "flex",
    "session_id": "x",
    "store": True,
    "truncation_side": "left",
    "user": "me",
}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (chat_completion_create_params.CompletionCreateParamsStreaming, ChatCompletionRequest),
        (completion_create_params.CompletionCreateParamsStreaming, CompletionRequest),
    ],
)
def test_no_field_of_openais_is_overlooked(theirs: type, ours: type[msgspec.Struct]) -> None:
    """Each one is taken, refused or harmless."""
    fields = get_type_hints(theirs).keys()
    assert {"model", "stream", "temperature"} <= fields
    assert fields - {*ours.__struct_fields__, *NOT_OFFERED, *HARMLESS} == set()


@pytest.mark.asyncio
async def test_unknown_fields_are_ignored(api: AppClient) -> None:
    for path, body in bodies({"foo": 1} | HARMLESS):
        assert (await api.call(path, body)).status == 200
