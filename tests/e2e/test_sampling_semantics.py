"""What users see of sampling, ends and outputs in Python, on the demo model. A bias of 100 decides what is said."""

import asyncio
import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from ringpost import AsyncLLM, RequestOutput, RequestOutputKind, SamplingParams
from ringpost.ipc.messages.errors import ParameterError

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"], loop_scope="module")

FRANCE = "The capital of France is"
DEF, NEWLINE, DOT, EOS, ONE, EXAGGERATED, HALF_EMOJI = 33203, 198, 30, 2, 582, 24098, 10813
MIDDLE, END = 235, 231  # 91 and 8d, which make a thumb of the half


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[AsyncLLM]:
    async with AsyncLLM.from_engine_args(dtype="float32", max_model_len=512, num_blocks_override=160) as running:
        yield running


def force(token: int, **params: Any) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 0, "logit_bias": {token: 100}, "output_kind": RequestOutputKind.FINAL_ONLY, **params}
    )


def then_eos(token: int, count: int, **params: Any) -> SamplingParams:
    return force(token, **{"min_tokens": count, "logit_bias": {token: 50, EOS: 100}, "max_tokens": 40, **params})


async def last(engine: AsyncLLM, prompt: Any, params: SamplingParams) -> RequestOutput:
    *_, output = [output async for output in engine.generate(prompt, params)]
    assert output.finished
    return output


async def answer(engine: AsyncLLM, prompt: Any, params: SamplingParams) -> tuple[str, list[int], Any, Any]:
    (one,) = (await last(engine, prompt, params)).outputs
    return one.text, list(one.token_ids), one.finish_reason, one.stop_reason


async def is_idle(engine: AsyncLLM) -> bool:
    """Whether nobody runs, waits or holds blocks: what was aborted is told to the core before the question."""
    numbers = await engine.describe()
    return (numbers.running, numbers.waiting, engine.num_unfinished_requests) == (0, 0, 0)


async def test_stop_strings(engine: AsyncLLM) -> None:
    assert await answer(engine, "ABC", force(DEF, stop=["DEFDEFD"], max_tokens=8)) == ("", [DEF] * 3, "stop", "DEFDEFD")
    assert await answer(engine, "ABC", force(DEF, stop=["DEFDEFX"], max_tokens=2)) == ("DEFDEF", [DEF] * 2, "length", None)
    for stop in (["```", "FD", "EF", "zzz"], ["zzz", "EF", "FD", "```"]):
        assert await answer(engine, "ABC", force(DEF, stop=stop)) == ("D", [DEF], "stop", "EF")
    assert await answer(engine, "ABC", force(NEWLINE, stop="\n\n", max_tokens=6)) == ("", [NEWLINE] * 2, "stop", "\n\n")
    shown = force(DEF, stop=["FDE"], include_stop_str_in_output=True)
    assert await answer(engine, "ABC", shown) == ("DEFDE", [DEF] * 2, "stop", "FDE")
    late = force(DEF, stop=["EF"], min_tokens=2)
    assert await answer(engine, "ABC", late) == ("DEFDEFD", [DEF] * 3, "stop", "EF")
    assert await is_idle(engine)


@pytest.mark.long
async def test_stop_tokens_and_the_models_end(engine: AsyncLLM) -> None:
    assert await answer(engine, "ABC", force(DOT, stop_token_ids=[DOT])) == ("", [DOT], "stop", DOT)
    shown = force(DOT, stop_token_ids=[DOT], include_stop_str_in_output=True)
    assert await answer(engine, "ABC", shown) == (".", [DOT], "stop", DOT)
    assert await answer(engine, "ABC", then_eos(DEF, 2)) == ("DEFDEF", [DEF, DEF, EOS], "stop", None)
    assert await answer(engine, "ABC", force(EOS, ignore_eos=True, max_tokens=5)) == ("", [EOS] * 5, "length", None)
    for params in (force(EOS, min_tokens=3, max_tokens=6), force(DOT, min_tokens=3, stop_token_ids=[DOT], max_tokens=6)):
        _, tokens, reason, _ = await answer(engine, "ABC", params)
        assert (len(tokens), reason) == (4, "stop")
        assert tokens[-1] not in tokens[:3]
        assert tokens[-1] in (EOS, DOT)


@pytest.mark.long
async def test_characters_in_pieces(engine: AsyncLLM) -> None:
    for kind in (RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY):
        texts = [
            one.outputs[0].text
            async for one in engine.generate([19556, 905, HALF_EMOJI, MIDDLE], force(END, max_tokens=1, output_kind=kind))
        ]
        assert "".join(texts) in ("\U0001f44d", "\ufffd")
    assert (await answer(engine, "ABC", force(HALF_EMOJI, max_tokens=6)))[0] == "\ufffd" * 6
    assert (await answer(engine, "ABC", then_eos(HALF_EMOJI, 1)))[::2] == ("\ufffd", "stop")
    assert (await answer(engine, "ABC", then_eos(DEF, 2, detokenize=False)))[:2] == ("", [DEF, DEF, EOS])


@pytest.mark.long
async def test_words_that_must_not_be_said(engine: AsyncLLM) -> None:
    params = force(EXAGGERATED, bad_words=["exaggerated"], max_tokens=4)
    text, tokens, *_ = await answer(engine, "Once upon a time", params)
    assert EXAGGERATED not in tokens
    assert "exaggerated" not in text
    with pytest.raises(ParameterError, match="allowed_token_ids must hold a token that neither bad_words"):
        await answer(engine, "Once", force(EXAGGERATED, bad_words=["exaggerated"], allowed_token_ids=[EXAGGERATED]))
    _, tokens, *_ = await answer(engine, "Once", SamplingParams(allowed_token_ids=[ONE, DOT], seed=1, max_tokens=20))
    assert set(tokens) <= {ONE, DOT}


async def test_circles_end(engine: AsyncLLM) -> None:
    detection: Any = {"max_pattern_size": 3, "min_count": 4}
    assert await answer(engine, "ABC", force(DEF, repetition_detection=detection)) == ("DEF" * 4, [DEF] * 4, "repetition", None)


@pytest.mark.long
async def test_penalties_change_what_is_likely(engine: AsyncLLM) -> None:
    def params(**penalty: Any) -> SamplingParams:
        return SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, **penalty)

    _, circles, *_ = await answer(engine, FRANCE, params())
    for penalty in ({"frequency_penalty": 2}, {"presence_penalty": 2}, {"repetition_penalty": 1.5}):
        _, tokens, *_ = await answer(engine, FRANCE, params(**penalty))
        assert len(set(tokens)) > len(set(circles))


@pytest.mark.long
async def test_answers_are_those_of_the_seeds_that_follow(engine: AsyncLLM) -> None:
    def params(**more: Any) -> SamplingParams:
        return SamplingParams(**{"max_tokens": 6, "ignore_eos": True, "output_kind": RequestOutputKind.FINAL_ONLY, **more})

    for prompt in ([504, *[ONE] * 3], [504, *[ONE] * 15], [504, *[ONE] * 40]):
        await engine.reset_prefix_cache()
        before = engine.stats.prompt_tokens
        together = await last(engine, prompt, params(n=3, seed=7))
        assert engine.stats.prompt_tokens - before == len(together.prompt_token_ids)
        assert [one.index for one in together.outputs] == [0, 1, 2]
        assert together.num_cached_tokens == 0
        alone = [await answer(engine, prompt, params(seed=7 + index)) for index in range(3)]
        assert [list(one.token_ids) for one in together.outputs] == [tokens for _, tokens, *_ in alone]
        assert len({tuple(one.token_ids) for one in together.outputs}) == 3
    assert await is_idle(engine)


async def test_leaving_a_request_of_several_answers_leaves_nothing(engine: AsyncLLM) -> None:
    params = SamplingParams(n=4, max_tokens=200, ignore_eos=True, output_kind=RequestOutputKind.DELTA)

    async def consume() -> None:
        async for _ in engine.generate(FRANCE, params, "many"):
            arrived.set()

    for turns in (None, 0, 1, 5, 20):
        arrived = asyncio.Event()
        task = asyncio.ensure_future(consume())
        if turns is None:
            await arrived.wait()
        else:
            for _ in range(turns):
                await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await is_idle(engine)
    outputs = engine.generate(FRANCE, params, "many")
    await anext(outputs)
    await outputs.aclose()
    assert await is_idle(engine)
    load = engine.load()
    assert load is not None
    assert load.used_blocks == 0


@pytest.mark.long
async def test_a_slow_consumer_gets_every_token_and_logprob(engine: AsyncLLM) -> None:
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=12, logprobs=1, output_kind=RequestOutputKind.DELTA)
    fast = [output.outputs[0] async for output in engine.generate(FRANCE, params)]
    collector = await engine.add_request(None, FRANCE, params)
    slow = [(await collector.get()).outputs[0]]
    while (await engine.describe()).running:  # to its end, while nobody takes anything
        pass
    slow.append((await collector.get()).outputs[0])
    collector.close()
    assert slow[-1].finish_reason == "length"
    for part in ("text", "token_ids", "logprobs"):
        pieces = [[item for one in outputs for item in getattr(one, part)] for outputs in (fast, slow)]
        if part == "logprobs":
            assert [list(place) for place in pieces[0]] == [list(place) for place in pieces[1]]
            assert len(pieces[1]) == 12
        else:
            assert pieces[0] == pieces[1]


@pytest.mark.long
async def test_an_output_every_so_many_tokens(engine: AsyncLLM) -> None:
    params = SamplingParams(
        temperature=0, ignore_eos=True, max_tokens=10, stream_interval=4, output_kind=RequestOutputKind.DELTA
    )
    sizes = [len(output.outputs[0].token_ids) async for output in engine.generate(FRANCE, params)]
    assert sizes == [1, 4, 4, 1]


@pytest.mark.long
async def test_logprobs_of_a_prompt_whether_it_is_cached_or_not(engine: AsyncLLM) -> None:
    prompt = [504, *[ONE] * 39]
    params = SamplingParams(temperature=0, prompt_logprobs=1, max_tokens=2, output_kind=RequestOutputKind.DELTA)
    for _ in range(2):
        first, *rest = [output async for output in engine.generate(prompt, params)]
        assert first.prompt_logprobs is not None
        assert first.num_cached_tokens == 0
        assert [place and next(iter(place)) for place in first.prompt_logprobs] == [None, *prompt[1:]]
        assert all(output.prompt_logprobs is None for output in rest)
    (output,) = [output async for output in engine.generate([5], force(DEF, prompt_logprobs=0, max_tokens=1))]
    assert output.prompt_logprobs == [None]


@pytest.mark.long
async def test_the_whole_vocabulary_needs_permission(engine: AsyncLLM) -> None:
    for field in ("logprobs", "prompt_logprobs"):
        for count in (-1, 21):
            fields: dict[str, Any] = {field: count}
            with pytest.raises(ParameterError, match=rf"^{field} must be at most 20, .* --max-logprobs allows, got {count}$"):
                await answer(engine, FRANCE, SamplingParams(**fields))


@pytest.mark.long
async def test_what_a_caller_passes_in_is_never_changed(engine: AsyncLLM) -> None:
    given: dict[str, Any] = {
        "logit_bias": {DEF: 100},
        "stop": ["zzz"],
        "stop_token_ids": [DOT],
        "bad_words": ["no"],
        "allowed_token_ids": [DEF],
        "extra_args": {"a": [1]},
    }
    kept, prompt = copy.deepcopy(given), [504, 3575, 282, 4649, 314]
    params = SamplingParams(temperature=0, n=1, max_tokens=4, **given)
    assert await answer(engine, prompt, params) == await answer(engine, prompt, params)
    assert given == kept
    assert prompt == [504, 3575, 282, 4649, 314]


@pytest.mark.long
async def test_pausing(engine: AsyncLLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    expected = [token for output in [o async for o in engine.generate(FRANCE, params)] for token in output.outputs[0].token_ids]
    for mode in ("keep", "wait", "abort"):
        running = await engine.add_request(None, FRANCE, params)
        tokens = list((await running.get()).outputs[0].token_ids)
        await engine.pause_generation(mode)
        assert await engine.is_paused()
        later = await engine.add_request(None, FRANCE, params)
        steps = (await engine.describe()).steps
        assert (await engine.describe()).steps == steps
        assert later.get_nowait() is None
        await engine.resume_generation()
        assert not await engine.is_paused()
        reason = None
        while reason is None:
            (one,) = (await running.get()).outputs
            tokens += one.token_ids
            reason = one.finish_reason
        assert reason == ("abort" if mode == "abort" else "length")
        assert tokens == expected[: len(tokens)]
        more: list[int] = []
        while len(more) < 10:
            more += (await later.get()).outputs[0].token_ids
        assert more == expected
    with pytest.raises(ValueError, match="mode must be one of 'abort', 'wait', 'keep', got 'stop'"):
        await engine.pause_generation("stop")  # type: ignore[arg-type]


@pytest.mark.long
async def test_what_an_engine_tells_about_itself(engine: AsyncLLM) -> None:
    assert await engine.get_supported_tasks() == ("generate",)
    with pytest.raises(ValueError, match=r"task must be one of .*generate.*; got 'encode'"):
        await engine.encode("Hello")
    tokenizer = await engine.get_tokenizer()
    assert tokenizer.encode("Hello world") == [19556, 905]
    assert tokenizer.decode([19556, 905]) == "Hello world"
    assert engine.get_default_sampling_params() == SamplingParams()
    assert await engine.reset_prefix_cache() is True
