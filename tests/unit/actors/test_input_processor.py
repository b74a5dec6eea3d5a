"""Requests at the edge: each fault is a ValueError that names the field and the value."""

import asyncio
import math
import re
from typing import Any

import msgspec
import pytest
from tiny_checkpoint import EOS_TOKEN_ID, write_tiny_llama

from ringpost.actors.config import engine_config, resolve_config
from ringpost.actors.frontend.input_processor import InputProcessor
from ringpost.actors.frontend.renderer import Renderer
from ringpost.ipc.codec import Codec
from ringpost.ipc.messages.config import EngineConfig
from ringpost.ipc.messages.errors import ParameterError
from ringpost.ipc.messages.requests import AddRequest, RequestMessage, Sibling
from ringpost.ipc.messages.sampling import MAX_SEED, SamplingParams

VOCAB, MAX_LEN, BLOCKS = 268, 64, 8  # of 16 tokens


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    directory = write_tiny_llama(tmp_path_factory.mktemp("tiny"))
    return resolve_config(engine_config(model=str(directory), max_model_len=MAX_LEN, seed=5))


@pytest.fixture(scope="module")
def renderer(config: EngineConfig) -> Renderer:
    return Renderer(config.checkpoint)


@pytest.fixture
def inputs(config: EngineConfig, renderer: Renderer) -> InputProcessor:
    return InputProcessor(config, renderer, BLOCKS)


@pytest.fixture
def by_priority(config: EngineConfig, renderer: Renderer) -> InputProcessor:
    scheduler = msgspec.structs.replace(config.scheduler, scheduling_policy="priority")
    return InputProcessor(msgspec.structs.replace(config, scheduler=scheduler), renderer, BLOCKS)


def process(inputs: InputProcessor, prompt: Any, external_id: Any = "r", **params: Any) -> AddRequest:
    sampling = SamplingParams(**params)
    content = inputs.check(prompt, sampling)
    tokens = asyncio.run(inputs.encode(content))
    return inputs.message([1], inputs.check_request_id(external_id), tokens, sampling)


BAD_PROMPTS: list[tuple[Any, str]] = [
    (None, "prompt must be text, .* got None"),
    (5, "got 5"),
    (b"text", "got b'text'"),
    ({1, 2}, "got {1, 2}"),
    (iter([1]), "prompt must be text"),
    ([], "prompt must not be empty"),
    ({}, r"one key, 'prompt' or 'prompt_token_ids'; got \[\]"),
    ({"text": "a"}, r"got \['text'\]"),
    ({"prompt": "a", "prompt_token_ids": [1]}, r"got \['prompt', 'prompt_token_ids'\]"),
    ({"prompt": "a", 1: 2}, r"got \['prompt', 1\]"),
    ({"prompt": None}, r"prompt\['prompt'\] must be text, got None"),
    ({"prompt": [1]}, r"prompt\['prompt'\] must be text, got \[1\]"),
    ({"prompt_token_ids": "a"}, r"prompt\['prompt_token_ids'\] must be token ids, got 'a'"),
    ({"prompt_token_ids": None}, "prompt must be text, a list of token ids or a dict of either, got None"),
    ({"prompt_token_ids": [VOCAB]}, f"prompt must hold token ids from 0 to {VOCAB - 1}, got {VOCAB}"),
    ([-1], f"from 0 to {VOCAB - 1}, got -1"),
    ([1, VOCAB, 2], f"got {VOCAB}"),
    ([True], "got True"),
    ([1.0], r"got 1\.0"),
    ([math.nan], "got nan"),
    (["1"], "got '1'"),
    ([None], "got None"),
    ([[1]], r"got \[1\]"),
    ([10**30], "got 1000"),
    ([1] * MAX_LEN, f"prompt has {MAX_LEN} tokens; with max_model_len={MAX_LEN} it may have at most {MAX_LEN - 1}"),
    ("", "prompt must not be empty: it gives no tokens"),
    ({"prompt": ""}, "prompt must not be empty"),
    ("ab\ud800c", r"lone surrogate, '\\ud800' at character 2"),
    ("x" * MAX_LEN, f"prompt has {MAX_LEN} tokens"),
]


@pytest.mark.parametrize(("prompt", "message"), BAD_PROMPTS)
def test_a_bad_prompt(inputs: InputProcessor, prompt: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        process(inputs, prompt)


@pytest.mark.parametrize("params", [{}, {"temperature": 0}, "greedy", 1])
def test_parameters_of_another_type(inputs: InputProcessor, params: Any) -> None:
    with pytest.raises(ValueError, match="sampling_params must be a SamplingParams"):
        inputs.check("a", params)


def test_a_request_id_of_a_megabyte(inputs: InputProcessor) -> None:
    with pytest.raises(ValueError, match="request_id must have at most 4096 characters, got 1000000"):
        process(inputs, "a", "r" * 1_000_000)


@pytest.mark.parametrize("request_id", [5, b"r", ["r"]])
def test_a_request_id_that_is_no_text(inputs: InputProcessor, request_id: Any) -> None:
    with pytest.raises(ValueError, match="request_id must be text, got"):
        process(inputs, "a", request_id)


@pytest.mark.parametrize("priority", [2**63, -(2**63) - 1, True, 1.0, "1", None, float("nan")])
def test_a_priority_that_is_no_number_of_64_bits(by_priority: InputProcessor, priority: Any) -> None:
    with pytest.raises(ParameterError, match=r"priority must be an integer from -2\*\*63 to 2\*\*63 - 1, got ") as caught:
        by_priority.check_sharing(priority, None)
    assert caught.value.parameter == "priority"
    assert str(caught.value).endswith(repr(priority))


def test_a_priority_counts_only_under_its_policy(inputs: InputProcessor, by_priority: InputProcessor) -> None:
    for priority in (-(2**63), -1, 1, 2**63 - 1):
        assert by_priority.check_sharing(priority, None) == ""
        message = f"priority must be 0, got {priority}: .* without --scheduling-policy priority$"
        with pytest.raises(ParameterError, match=message) as caught:
            inputs.check_sharing(priority, None)
        assert caught.value.parameter == "priority"
    assert inputs.check_sharing(0, None) == ""


@pytest.mark.parametrize(
    ("salt", "message"),
    [
        ("", "must have 1 to 256 characters, got 0: ''"),
        ("x" * 257, "must have 1 to 256 characters, got 257: 'xx"),
        ("a\ud800", "must not hold a lone surrogate"),
        (5, "must be text, got 5"),
        (b"salt", "must be text, got b'salt'"),
    ],
)
def test_a_bad_cache_salt(inputs: InputProcessor, salt: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=f"^cache_salt {message}") as caught:
        inputs.check_sharing(0, salt)
    assert caught.value.parameter == "cache_salt"
    assert len(str(caught.value)) < 200


def test_a_cache_salt_crosses_as_plain_text(inputs: InputProcessor) -> None:
    class Text(str):
        __slots__ = ()

    for salt in ("s", "\U0001f9c2" * 256):
        checked = inputs.check_sharing(0, Text(salt))
        assert (checked, type(checked)) == (salt, str)


def test_a_request_without_an_id_gets_one_of_its_own(inputs: InputProcessor) -> None:
    assert inputs.check_request_id("mine") == "mine"
    assert len({inputs.check_request_id(None) for _ in range(3)}) == 3


def test_a_stop_token_outside_the_vocabulary(inputs: InputProcessor) -> None:
    with pytest.raises(ValueError, match=f"stop_token_ids must hold token ids from 0 to {VOCAB - 1}, got {VOCAB}"):
        process(inputs, "a", stop_token_ids=[1, VOCAB])


def test_a_bias_outside_the_vocabulary(inputs: InputProcessor) -> None:
    with pytest.raises(ParameterError, match=f"logit_bias must hold token ids from 0 to {VOCAB - 1}, got {VOCAB}") as caught:
        process(inputs, "a", logit_bias={1: 1, VOCAB: 1})
    assert caught.value.parameter == "logit_bias"
    assert process(inputs, "a", logit_bias={VOCAB - 1: 1}).params.logit_bias == {VOCAB - 1: 1}


@pytest.mark.parametrize("max_tokens", [None, MAX_LEN])
def test_min_tokens_beyond_the_room_for_an_answer(inputs: InputProcessor, max_tokens: int | None) -> None:
    room = MAX_LEN - 10
    assert process(inputs, [5] * 10, max_tokens=max_tokens, min_tokens=room).params.min_tokens == room
    with pytest.raises(ParameterError, match=rf"min_tokens must be at most {room}, .* 10 tokens, got {room + 1}$") as caught:
        process(inputs, [5] * 10, max_tokens=max_tokens, min_tokens=room + 1)
    assert caught.value.parameter == "min_tokens"


def test_min_tokens_beyond_the_cache(config: EngineConfig, renderer: Renderer) -> None:
    with pytest.raises(ParameterError, match=r"min_tokens must be at most 7, .* got 8"):
        process(InputProcessor(config, renderer, 1), [5] * 10, max_tokens=None, min_tokens=8)


@pytest.mark.parametrize("prompt", ["ab", {"prompt": "ab"}, [100, 101], (100, 101), {"prompt_token_ids": [100, 101]}])
def test_every_form_of_prompt(inputs: InputProcessor, prompt: Any) -> None:
    message = process(inputs, prompt)
    assert message.prompt == [100, 101]
    assert (message.request, message.external_id, message.eos_token_ids) == (1, "r", (2,))
    codec: Codec[RequestMessage] = Codec(RequestMessage)
    assert codec.decode(codec.encode(message)) == message


def test_a_long_text_is_cut_by_nobody(inputs: InputProcessor) -> None:
    with pytest.raises(ValueError, match=r"prompt has 6000 characters, which are at least \d+ tokens"):
        process(inputs, "x" * 6000)


def test_the_callers_list_is_neither_kept_nor_changed(inputs: InputProcessor) -> None:
    ids = [100, 101]
    content = inputs.check(ids, SamplingParams())
    ids.append(10**9)
    assert content == [100, 101]
    assert process(inputs, prompt := {"prompt_token_ids": [5]}).prompt is not prompt["prompt_token_ids"]
    assert prompt == {"prompt_token_ids": [5]}


def test_seeds_are_given_out_and_repeatable(config: EngineConfig, renderer: Renderer) -> None:
    def seeds(seed: int | None) -> list[int | None]:
        runtime = msgspec.structs.replace(config.runtime, seed=seed)
        inputs = InputProcessor(msgspec.structs.replace(config, runtime=runtime), renderer, BLOCKS)
        return [process(inputs, "a", seed=wanted).params.seed for wanted in (None, -1, 7, 0, None)]

    assert seeds(5) == seeds(5) != seeds(6)
    assert seeds(5)[2:4] == [7, 0]
    given_out = [*seeds(None), *seeds(None)]
    random = [seed for index, seed in enumerate(given_out) if index % 5 in (0, 1, 4)]
    assert len(set(random)) == 6
    assert all(isinstance(seed, int) and 0 <= seed < 2**63 for seed in random)


@pytest.mark.parametrize(
    ("length", "wanted", "blocks", "max_tokens"),
    [
        (10, None, BLOCKS, MAX_LEN - 10),
        (10, 5, BLOCKS, 5),
        (10, 1000, BLOCKS, MAX_LEN - 10),
        (MAX_LEN - 1, None, BLOCKS, 1),
        (10, None, 1, 7),  # the last token needs no room in the cache
        (10, 7, 1, 7),
        (10, 8, 1, 7),
        (10, 1000, 1, 7),
        (16, None, 1, 1),
        (16, 5, 1, 1),
    ],
)
def test_the_length_of_the_answer_is_settled(
    config: EngineConfig, renderer: Renderer, length: int, wanted: int | None, blocks: int, max_tokens: int
) -> None:
    message = process(InputProcessor(config, renderer, blocks), [5] * length, max_tokens=wanted)
    assert message.params.max_tokens == max_tokens


@pytest.mark.parametrize("wanted", [1, None, 1000])
def test_a_prompt_that_can_never_fit_the_cache(config: EngineConfig, renderer: Renderer, wanted: int | None) -> None:
    inputs = InputProcessor(config, renderer, 1)
    message = r"^prompt has 17 tokens, which can never fit the KV cache of 16 tokens \(1 blocks of 16\)$"
    with pytest.raises(ParameterError, match=message) as caught:
        process(inputs, [5] * 17, max_tokens=wanted)
    assert caught.value.parameter == "prompt"


def test_a_text_without_tokens() -> None:
    config = resolve_config(EngineConfig())
    inputs = InputProcessor(config, Renderer(config.checkpoint), 100)
    with pytest.raises(ValueError, match="prompt must not be empty: it gives no tokens"):
        process(inputs, "\u0004")


def test_several_answers_have_the_seeds_that_follow(inputs: InputProcessor) -> None:
    params = SamplingParams(n=3, seed=MAX_SEED - 1, stop="x", bad_words=["ab"])
    message = inputs.message([4, 5, 6], "r", [10], params)
    assert (message.request, message.params.seed, message.params.n) == (4, MAX_SEED - 1, 1)
    assert message.siblings == (Sibling(5, MAX_SEED), Sibling(6, 0))
    assert message.params.bad_words == ()
    assert message.params.bad_words_token_ids


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"allowed_token_ids": [5], "bad_words_token_ids": [[5]]}, "neither bad_words nor min_tokens rule out, got [5]"),
        ({"allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 1}, "neither bad_words nor min_tokens rule out"),
        ({"allowed_token_ids": [EOS_TOKEN_ID], "min_tokens": 1}, "neither bad_words nor min_tokens rule out"),
        ({"logprobs": 21}, "logprobs must be at most 20, which this engine's --max-logprobs allows, got 21"),
        ({"prompt_logprobs": -1}, "prompt_logprobs must be at most 20"),
        ({"bad_words_token_ids": [[10**6]]}, "bad_words_token_ids must hold token ids from 0"),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids must hold token ids from 0"),
    ],
)
def test_parameters_that_cannot_be_met(inputs: InputProcessor, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(message)):
        process(inputs, [10], **params)


def test_a_token_that_is_left_is_enough(inputs: InputProcessor) -> None:
    process(inputs, [10], allowed_token_ids=[EOS_TOKEN_ID, 5], min_tokens=1)
    process(inputs, [10], allowed_token_ids=[EOS_TOKEN_ID], min_tokens=1, ignore_eos=True)


def test_logprobs_that_no_mailbox_carries(config: EngineConfig, renderer: Renderer) -> None:
    model, runtime = (
        msgspec.structs.replace(config.model, max_logprobs=-1),
        msgspec.structs.replace(config.runtime, mailbox_bytes=1 << 16),
    )
    small = msgspec.structs.replace(config, model=model, runtime=runtime)
    process(InputProcessor(small, renderer, BLOCKS), [10], logprobs=-1)
    wide = msgspec.structs.replace(small, checkpoint=msgspec.structs.replace(small.checkpoint, vocab_size=50_000))
    with pytest.raises(ParameterError, match=r"^logprobs must be fewer, got -1: they are 200000 bytes .* 65536$"):
        process(InputProcessor(wide, renderer, BLOCKS), [10], logprobs=-1)


def test_bad_words_that_become_too_many_tokens(inputs: InputProcessor) -> None:
    """Of the tiny model, each byte is a token; elsewhere a word may as well become more than there may be."""
    process(inputs, [10], bad_words=["a" * 255])
    with pytest.raises(ParameterError, match=r"^bad_words must hold lists of at most 256 token ids"):
        process(inputs, [10], bad_words=["\U0001f44d" * 65])
