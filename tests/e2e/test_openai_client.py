"""OpenAI's own Python client talks to the server as it does to OpenAI."""

from collections.abc import AsyncIterator, Iterator
from functools import partial

import openai
import pytest
import pytest_asyncio
from demo_tokens import DEF, EOS, FRANCE, FRANCE_IDS
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionStreamOptionsParam, ChatCompletionUserMessageParam
from servers import ServerProcess, running_server

KEY = "a key"
DEFS = {str(DEF): 100}
QUESTION = ChatCompletionUserMessageParam(role="user", content="Say hi.")
USAGE = (5, 3, 8)  # of the completion of FRANCE with three tokens


@pytest.fixture(scope="module")
def server(smollm2: str) -> Iterator[ServerProcess]:
    options = ["--dtype", "float32", "--max-model-len", "128", "--num-threads", "1"]
    with running_server(*options, RINGPOST_API_KEY=KEY) as running:
        yield running
        assert running.stderr() == ""


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as connected:
        yield connected


@pytest_asyncio.fixture
async def async_client(server: ServerProcess) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as connected:
        yield connected


def test_completions(client: OpenAI) -> None:
    for prompt in (FRANCE, FRANCE_IDS):
        whole = client.completions.create(model="m", prompt=prompt, max_tokens=3, temperature=0)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == (" Paris.\n", "length")
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == USAGE
    several = client.completions.create(model="m", prompt=[FRANCE, "ABC"], max_tokens=2, n=2, best_of=2, logit_bias=DEFS)
    assert [(choice.index, choice.text) for choice in several.choices] == [(index, "DEFDEF") for index in range(4)]


def test_stops_and_logprobs_of_completions(client: OpenAI) -> None:
    create = partial(client.completions.create, model="m", prompt=FRANCE, max_tokens=3, temperature=0)
    (choice,) = create(stop=[".", "\n"]).choices
    assert (choice.text, choice.finish_reason) == (" Paris", "stop")
    (choice,) = create(logprobs=2, echo=True).choices
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == choice.text == f"{FRANCE} Paris.\n"
    assert choice.logprobs.token_logprobs is not None
    assert [value is None for value in choice.logprobs.token_logprobs] == [True] + [False] * 7


def test_logprobs_of_chats(client: OpenAI) -> None:
    (choice,) = client.chat.completions.create(
        model="m", messages=[QUESTION], max_tokens=3, temperature=0, logprobs=True, top_logprobs=2
    ).choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    for entry in choice.logprobs.content:
        assert (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob) == (entry.token, entry.logprob)
        assert bytes(entry.bytes or []).decode() == entry.token
        assert len(entry.top_logprobs) == 2
    with client.chat.completions.create(
        model="m", messages=[QUESTION], max_tokens=3, temperature=0, logprobs=True, stream=True
    ) as stream:
        parts = [part.choices[0].logprobs for part in stream]
    streamed = [entry for part in parts if part is not None for entry in part.content or []]
    assert [entry.token for entry in streamed] == [entry.token for entry in choice.logprobs.content]


def test_a_stream_of_completions(client: OpenAI) -> None:
    options = ChatCompletionStreamOptionsParam(include_usage=True)
    with client.completions.create(
        model="m", prompt=FRANCE, max_tokens=3, temperature=0, stream=True, stream_options=options
    ) as stream:
        *events, last = stream
    assert "".join(event.choices[0].text for event in events) == " Paris.\n"
    assert events[-1].choices[0].finish_reason == "length"
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == USAGE


def test_chats(client: OpenAI) -> None:
    chats, only_in_ours = client.chat.completions, {"min_tokens": 2}
    messages, bias = [QUESTION], {str(DEF): 50, str(EOS): 100}  # the answer is DEF twice
    (choice,) = chats.create(model="m", messages=messages, temperature=0, logit_bias=bias, extra_body=only_in_ours).choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "DEFDEF", "stop")
    with chats.create(
        model="m", messages=messages, temperature=0, logit_bias=bias, extra_body=only_in_ours, stream=True
    ) as stream:
        parts = [part.choices[0] for part in stream]
    assert [part.delta.content for part in parts] == ["", "DEF", "DEF", None]
    assert parts[-1].finish_reason == "stop"
    with chats.stream(model="m", messages=messages, temperature=0, max_completion_tokens=40) as events:
        answer = events.get_final_completion().choices[0]
    plain = chats.create(model="m", messages=messages, temperature=0, max_tokens=40).choices[0]
    assert (answer.message.content, answer.finish_reason) == (plain.message.content, "stop")


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list()
    assert (model.id, model.object) == ("m", "model")
    assert client.models.retrieve("m") == model


def test_errors_have_their_classes(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"temperature must be .*, got 9") as refused:
        client.completions.create(model="m", prompt=FRANCE, temperature=9)
    assert (refused.value.param, refused.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="128") as refused:
        client.completions.create(model="m", prompt=[5] * 200)
    assert (refused.value.param, refused.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(openai.NotFoundError, match="'other' is not served here") as unknown:
        client.chat.completions.create(model="other", messages=[QUESTION])
    assert (unknown.value.param, unknown.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.NotFoundError, match="'other' is not served here"):
        client.models.retrieve("other")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="m", messages=[QUESTION], stream=True, top_p=7)
    assert refused.value.param == "top_p"


def test_another_key_is_refused(server: ServerProcess) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="another", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        with pytest.raises(openai.AuthenticationError):
            stranger.completions.create(model="m", prompt=FRANCE)


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_the_asynchronous_client(async_client: AsyncOpenAI) -> None:
    assert [model.id async for model in async_client.models.list()] == ["m"]
    create = async_client.chat.completions.create
    whole = await create(model="m", messages=[QUESTION], logit_bias=DEFS, max_tokens=3, temperature=0)
    assert whole.choices[0].message.content == "DEFDEFDEF"
    stream = await create(model="m", messages=[QUESTION], logit_bias=DEFS, max_tokens=3, temperature=0, stream=True)
    assert "".join([part.choices[0].delta.content or "" async for part in stream]) == "DEFDEFDEF"
    left = await async_client.completions.create(model="m", prompt=FRANCE, max_tokens=100, stream=True)
    assert (await anext(aiter(left))).choices[0].index == 0
    await left.close()
    with pytest.raises(openai.BadRequestError):
        await async_client.completions.create(model="m", prompt=[])
