"""What an answer of the HTTP server holds and where it ends, on the demo model, whole and streamed."""

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import pytest
from api_client import CHAT, COMPLETIONS, Answer, Client, Json, joined
from demo_tokens import DEF, EOS, FRANCE, FRANCE_IDS, HALF_EMOJI, NEWLINE, force, then_eos, user
from servers import ServerProcess, running_server

DOT = 30
ONE = 582  # " one"
EXAGGERATED = 24098  # " exaggerated"
BARE = [888, 12895, 483]  # the same without a space before it
THUMB = "\N{THUMBS UP SIGN}"
THUMB_IDS = [HALF_EMOJI, 235, 231]

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # of the client; the server has its own


@pytest.fixture(scope="module")
def server(smollm2: str) -> Iterator[ServerProcess]:
    """Its steps are small, so that prompts of some length take several."""
    options = ["--dtype", "float32", "--max-model-len", "256", "--num-threads", "1", "--max-num-batched-tokens", "48"]
    with running_server(*options) as running:
        yield running
        assert running.stderr() == ""


def near(logprobs: Any) -> Any:
    """The same logprobs, but for the order in which sums were made."""
    return pytest.approx(logprobs, rel=0, abs=1e-3)


def choices_of(answer: Answer) -> list[Json]:
    """Everything that was told of the choices, event by event."""
    return [choice for event in answer.events for choice in event["choices"]]


def logprobs_of(answer: Answer) -> Json:
    """The logprobs of an answer of one choice, put together."""
    return joined([choice["logprobs"] for choice in choices_of(answer)])


@pytest.mark.parametrize(
    ("fields", "text", "finish_reason", "stop_reason", "count"),
    [
        ({"stop": ["DEFDEFD"], **force(DEF)}, "", "stop", "DEFDEFD", 3),
        ({"stop": ["DEFDEFX"], "max_tokens": 2, **force(DEF)}, "DEFDEF", "length", None, 2),
        ({"stop": ["```", "FD", "EF", "zzz"], **force(DEF)}, "D", "stop", "EF", 1),
        ({"stop": ["zzz", "EF", "FD", "```"], **force(DEF)}, "D", "stop", "EF", 1),
        ({"stop": "\n\n", **force(NEWLINE)}, "", "stop", "\n\n", 2),
        ({"stop": "FD", "include_stop_str_in_output": True, **force(DEF)}, "DEFD", "stop", "FD", 2),
        ({"stop": "FD", "min_tokens": 3, **force(DEF)}, "DEFDEFDE", "stop", "FD", 4),
        ({"stop_token_ids": [DOT], **force(DOT)}, "", "stop", DOT, 1),
        ({"stop_token_ids": [DOT], "include_stop_str_in_output": True, **force(DOT)}, ".", "stop", DOT, 1),
        ({"stop_token_ids": [EOS], **then_eos(DEF, 2)}, "DEFDEF", "stop", None, 3),
        ({"stop_token_ids": [DOT], "min_tokens": 3, **force(DOT)}, None, "stop", DOT, 4),
        ({"min_tokens": 3, **force(EOS)}, None, "stop", None, 4),
        ({"ignore_eos": True, "max_tokens": 5, **force(EOS)}, "", "length", None, 5),
        ({"repetition_detection": {"max_pattern_size": 2, "min_count": 4}, **force(DEF)}, "DEF" * 4, "repetition", None, 4),
    ],
    ids=str,
)
async def test_where_an_answer_ends(
    client: Client, fields: Json, text: str | None, finish_reason: str, stop_reason: object, count: int
) -> None:
    """Whatever is held back while it may become a stop string."""
    answers = await client.both(COMPLETIONS, {"prompt": FRANCE, "max_tokens": 8, **fields})
    for answer in answers:
        assert (answer.first.finish_reason, answer.completion_tokens) == (finish_reason, count)
        assert choices_of(answer)[-1]["stop_reason"] == stop_reason
        assert answer.first.text == (answers[0].first.text if text is None else text)


@pytest.mark.parametrize(
    ("fields", "count", "finish_reason"),
    [
        ({"ignore_eos": True, "max_tokens": 4}, 12, "length"),
        ({"ignore_eos": True, "max_tokens": 1}, 3, "length"),
        ({"logit_bias": {str(EOS): 100}, "max_tokens": 4}, 3, "stop"),
    ],
    ids=str,
)
async def test_several_answers_to_a_prompt(client: Client, fields: Json, count: int, finish_reason: str) -> None:
    """Each is what its own seed gives alone."""
    body = {"messages": user("Tell a story"), "temperature": 1, "return_token_ids": True, **fields}
    alone = [await client.ask(CHAT, body | {"seed": seed}) for seed in (1, 2, 3)]
    for answer in await client.both(CHAT, body | {"seed": 1, "n": 3}):
        assert list(sorted(answer.choices)) == [0, 1, 2]
        assert [answer.choices[index] for index in range(3)] == [one.first for one in alone]
        assert {choice.finish_reason for choice in answer.choices.values()} == {finish_reason}
        assert (answer.completion_tokens, answer.prompt_tokens) == (count, alone[0].prompt_tokens)


@pytest.mark.long
async def test_several_prompts_with_several_answers_each(client: Client) -> None:
    body = {"max_tokens": 3, "seed": 5, "ignore_eos": True, "return_token_ids": True}
    alone = [await client.ask(COMPLETIONS, body | {"prompt": prompt, "n": 2}) for prompt in (FRANCE, "ABC")]
    expected = [one.choices[index] for one in alone for index in (0, 1)]
    for answer in await client.both(COMPLETIONS, body | {"prompt": [FRANCE, "ABC"], "n": 2}):
        assert [answer.choices[index] for index in range(4)] == expected


async def test_an_echo_with_logprobs(client: Client) -> None:
    body = {"prompt": FRANCE, "echo": True, "logprobs": 1, "max_tokens": 3, "temperature": 0}
    whole, streamed = await client.both(COMPLETIONS, body)
    by_ids = await client.ask(COMPLETIONS, body | {"prompt": FRANCE_IDS})
    logprobs = logprobs_of(whole)
    assert len(logprobs["tokens"]) == 8
    assert "".join(logprobs["tokens"]) == whole.first.text == f"{FRANCE} Paris.\n"
    assert logprobs["text_offset"] == [sum(map(len, logprobs["tokens"][:place])) for place in range(8)]
    first, *others = logprobs["token_logprobs"]
    assert first is None
    assert all(-math.inf < value <= 0 for value in others)
    for other in (logprobs_of(streamed), logprobs_of(by_ids)):
        assert (other["tokens"], other["text_offset"]) == (logprobs["tokens"], logprobs["text_offset"])
        assert other["token_logprobs"][1:] == near(others)
    only = await client.ask(COMPLETIONS, body | {"max_tokens": 0})
    assert only.first.text == FRANCE
    assert logprobs_of(only)["token_logprobs"][1:] == near(others[:4])


@pytest.mark.long
async def test_logprobs_of_a_prompt_cold_and_warm(client: Client) -> None:
    """It takes several steps; what the cache holds of it is computed again."""
    prompt = [504] + [ONE] * 99
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
    told = []
    for _ in range(2):
        for answer in await client.both(COMPLETIONS, body | {"prompt_logprobs": 1}):
            first, *rest = choices_of(answer)[0]["prompt_logprobs"]
            assert (first, len(rest)) == (None, 99)
            told.append([place[str(ONE)]["logprob"] for place in rest])
    assert all(one == near(told[0]) for one in told)
    assert max(told[0]) < 0
    echoed = await client.ask(COMPLETIONS, body | {"echo": True, "logprobs": 1})
    assert logprobs_of(echoed)["token_logprobs"][1:100] == near(told[0])


@pytest.mark.long
async def test_tokens_that_are_parts_of_a_character(client: Client) -> None:
    chat = {"messages": user(THUMB * 8), "logprobs": True, "top_logprobs": 5, "max_tokens": 2, **force(HALF_EMOJI)}
    for answer in await client.both(CHAT, chat):
        half, after = logprobs_of(answer)["content"]
        assert (half["bytes"], after["bytes"]) == ([0xF0, 0x9F], [0xF0, 0x9F])
        likely = [bytes(top["bytes"]) for top in after["top_logprobs"]]
        assert len(set(likely)) == 5
        assert "\ufffd".encode() not in likely
    prompt = THUMB_IDS * 4 + [HALF_EMOJI]
    for answer in await client.both(COMPLETIONS, {"prompt": prompt, "logprobs": 5, "max_tokens": 1, "temperature": 0}):
        (tops,) = logprobs_of(answer)["top_logprobs"]
        assert len(tops) >= 5
        assert any(name.startswith("bytes:\\x") for name in tops)


@pytest.mark.long
async def test_a_character_of_several_tokens_is_told_when_it_is_complete(client: Client) -> None:
    """By the model itself, which goes on with what it has read."""
    body = {"prompt": THUMB_IDS * 6, "logprobs": 0, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    for answer in await client.both(COMPLETIONS, body):
        logprobs = logprobs_of(answer)
        assert "".join(logprobs["tokens"]) == answer.first.text == THUMB
        assert logprobs["tokens"] == ["", "", THUMB]
        assert logprobs["text_offset"] == [0, 0, 0]


async def test_a_token_that_begins_with_a_space(client: Client) -> None:
    answer = await client.ask(COMPLETIONS, {"prompt": FRANCE, "logprobs": 2, "max_tokens": 1, **force(EXAGGERATED)})
    logprobs = logprobs_of(answer)
    assert logprobs["tokens"] == [" exaggerated"]
    assert len(logprobs["top_logprobs"][0]) == 3
    assert logprobs["top_logprobs"][0][" exaggerated"] == logprobs["token_logprobs"][0] < -5  # as the model has it, unbiased


@pytest.mark.long
async def test_values_that_are_as_good_as_greedy(client: Client) -> None:
    body = {"prompt": FRANCE, "max_tokens": 6, "seed": 1}
    greedy = await client.ask(COMPLETIONS, body | {"temperature": 0})
    as_good: list[Json] = [
        *({"temperature": value} for value in (1e-4, 1e-6, 1e-30)),
        {"top_p": 0.0001},
        {"top_k": 1},
        {"min_p": 1.0},
    ]
    for fields in as_good:
        assert (await client.ask(COMPLETIONS, body | fields)).first == greedy.first, fields
    texts = {(await client.ask(COMPLETIONS, body | {"top_k": value})).first.text for value in (-1, 0, 1_000_000)}
    assert len(texts) == 1


@pytest.mark.long
async def test_a_penalty_ends_a_repetition(client: Client) -> None:
    body = {"prompt": [504] + [ONE] * 39, "max_tokens": 3, "temperature": 0, "return_token_ids": True}
    assert len(set((await client.ask(COMPLETIONS, body)).first.token_ids)) == 1
    said = (await client.ask(COMPLETIONS, body | {"repetition_penalty": 100})).first.token_ids
    assert len(set(said)) == 3
    assert ONE not in said


async def test_bad_words_and_allow_lists(client: Client) -> None:
    body = {"prompt": "Once upon a time", "bad_words": ["exaggerated"], "max_tokens": 4, "return_token_ids": True}
    said = (await client.ask(COMPLETIONS, body | force(EXAGGERATED))).first
    assert EXAGGERATED not in said.token_ids
    assert "exaggerated" not in said.text
    bare = {"temperature": 0, "logit_bias": {str(token): 100 for token in BARE}, "allowed_token_ids": BARE}
    assert "exaggerated" not in (await client.ask(COMPLETIONS, body | bare)).first.text
    only = await client.ask(COMPLETIONS, body | {"bad_words": None, "allowed_token_ids": [DEF, DOT], "temperature": 1})
    assert set(only.first.token_ids) <= {DEF, DOT}


async def test_words_that_leave_nothing_to_say_are_refused(client: Client) -> None:
    body = {"prompt": FRANCE, "bad_words": ["exaggerated"], "allowed_token_ids": [EXAGGERATED], "max_tokens": 4}
    for stream in (False, True):
        assert (await client.refused(COMPLETIONS, body | {"stream": stream}))["param"] == "allowed_token_ids"
    assert (await client.ask(COMPLETIONS, {"prompt": FRANCE, "max_tokens": 1, "temperature": 0})).first.text == " Paris"


@pytest.mark.long
async def test_prompts_beside_decodes_are_as_they_are_alone(client: Client) -> None:
    """However the steps divide them."""
    prompts = [[1000 + number, *([ONE, 504, DEF, DOT] * 30)[:99]] for number in range(3)]
    tail = {"temperature": 0, "ignore_eos": True, "logprobs": 5}
    bodies = [{"prompt": prompt, "max_tokens": 3, **tail} for prompt in prompts]
    decode = {"prompt": "Once upon a time", "max_tokens": 40, **tail}
    under_way = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(client.stream(COMPLETIONS, decode, lambda _: under_way.set()))
        await under_way.wait()
        busy = [tasks.create_task(client.ask(COMPLETIONS, body)) for body in bodies]
    assert len(logprobs_of(running.result())["tokens"]) == 40
    for task, body in zip(busy, bodies, strict=True):
        alone, together = logprobs_of(await client.ask(COMPLETIONS, body)), logprobs_of(task.result())
        assert together["tokens"] == alone["tokens"]
        assert together["top_logprobs"][0] == near(alone["top_logprobs"][0])
