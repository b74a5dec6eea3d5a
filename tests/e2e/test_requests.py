"""What a program can ask of a running engine, on the demo model."""

import asyncio
import copy
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace

from ringpost import AsyncLLM, Prompt, RequestEnded, RequestOutput, RequestOutputKind, SamplingParams

FRANCE = "The capital of France is"
FRANCE_IDS = [504, 3575, 282, 4649, 314]
DEF, EOS = 33203, 2  # the tokens "DEF" and <|im_end|>
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)

# Answers do not depend on the loop; leaving them may.
pytestmark = pytest.mark.asyncio(loop_scope="module", loop_factories=["uvloop"])
on_both_loops = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine() -> AsyncIterator[AsyncLLM]:
    options = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 8, "num_blocks_override": 64, "num_threads": 1}
    async with AsyncLLM.from_engine_args(**options, max_num_batched_tokens=64) as running:
        yield running


async def last(engine: AsyncLLM, prompt: Prompt, params: SamplingParams) -> RequestOutput:
    *_, output = [output async for output in engine.generate(prompt, params)]
    assert output.finished
    return output


async def wait_idle(engine: AsyncLLM) -> None:
    """Return when the core holds nothing; the test's watchdog ends a wait that is in vain."""
    while True:
        state = await engine.describe()
        if (state.running, state.waiting, state.free_blocks) == (0, 0, state.num_blocks):
            return


async def test_text_and_ids_give_the_same_answer(engine: AsyncLLM) -> None:
    by_text = await last(engine, FRANCE, GREEDY)
    by_ids = await last(engine, FRANCE_IDS, GREEDY)
    assert by_text.prompt_token_ids == by_ids.prompt_token_ids == FRANCE_IDS
    assert (by_text.prompt, by_ids.prompt) == (FRANCE, None)
    assert by_text.outputs == by_ids.outputs
    assert by_text.outputs[0].text.startswith(" Paris")
    forms: list[Prompt] = [{"prompt": FRANCE}, {"prompt_token_ids": FRANCE_IDS}]
    for prompt in forms:
        outputs = [output async for output in engine.generate(prompt, GREEDY)]
        assert outputs[-1].outputs == by_text.outputs


async def test_output_kinds_agree(engine: AsyncLLM) -> None:
    outputs = {}
    for kind in ("cumulative", "delta", "final_only"):
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, output_kind=RequestOutputKind(kind))
        outputs[kind] = [output.outputs[0] async for output in engine.generate(FRANCE, params)]
    final = outputs["final_only"][0]
    assert len(outputs["final_only"]) == 1
    assert len(final.token_ids) == 12
    assert outputs["cumulative"][-1] == final
    assert "".join(part.text for part in outputs["delta"]) == final.text
    assert [token for part in outputs["delta"] for token in part.token_ids] == final.token_ids
    assert [part.finished for part in outputs["delta"]] == [False] * (len(outputs["delta"]) - 1) + [True]


async def test_ends(engine: AsyncLLM) -> None:
    free = (await last(engine, FRANCE, GREEDY)).outputs[0]
    assert (free.finish_reason, free.stop_reason, len(free.token_ids)) == ("length", None, 12)
    stop = free.token_ids[4]
    first = free.token_ids.index(stop)
    stopped = (await last(engine, FRANCE, SamplingParams(temperature=0, max_tokens=12, stop_token_ids=[stop]))).outputs[0]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert free.text.startswith(stopped.text)
    unlimited = await last(engine, FRANCE_IDS * 46, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    assert len(unlimited.outputs[0].token_ids) == 256 - 46 * len(FRANCE_IDS)
    assert unlimited.outputs[0].finish_reason == "length"


@pytest.mark.long
async def test_the_model_can_end_by_itself(engine: AsyncLLM) -> None:
    prompt = await engine.chat_prompt([{"role": "user", "content": "Say hi."}])
    answer = (await last(engine, prompt, SamplingParams(temperature=0, max_tokens=40))).outputs[0]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", None)
    assert answer.token_ids[-1] == 2
    assert "<|im_end|>" not in answer.text
    longer = (await last(engine, prompt, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))).outputs[0]
    assert len(longer.token_ids) == 40
    assert longer.token_ids[: len(answer.token_ids)] == answer.token_ids


@pytest.mark.parametrize("style", [{"temperature": 0}, {"temperature": 1, "seed": 3}])
async def test_a_bias_forces_tokens_and_min_tokens_hold_back_the_end(engine: AsyncLLM, style: dict[str, float]) -> None:
    forced = SamplingParams(**style, logit_bias={DEF: 100}, max_tokens=4)  # type: ignore[arg-type]
    held = SamplingParams(**style, logit_bias={DEF: 50, EOS: 100}, min_tokens=2)  # type: ignore[arg-type]
    long_prompt = " ".join([FRANCE] * 40)
    prompts = [(FRANCE, GREEDY), (FRANCE, forced), (long_prompt, held), (FRANCE, held)]
    alone = await last(engine, FRANCE, GREEDY)
    outputs = [output.outputs[0] for output in await asyncio.gather(*(last(engine, *prompt) for prompt in prompts))]
    assert outputs[0] == alone.outputs[0]
    assert (outputs[1].text, outputs[1].token_ids, outputs[1].finish_reason) == ("DEF" * 4, [DEF] * 4, "length")
    for output in outputs[2:]:
        assert (output.text, output.token_ids) == ("DEFDEF", [DEF, DEF, EOS])
        assert (output.finish_reason, output.stop_reason) == ("stop", None)


async def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(engine: AsyncLLM) -> None:
    params = [SamplingParams(seed=seed, top_k=50, top_p=0.95, max_tokens=8, ignore_eos=True) for seed in range(8)]
    alone = [(await last(engine, FRANCE, one)).outputs[0].token_ids for one in params]
    batch = await asyncio.gather(*(last(engine, FRANCE, one) for one in params))
    assert [output.outputs[0].token_ids for output in batch] == alone
    assert len({tuple(tokens) for tokens in alone}) > 4


@pytest.mark.long
@pytest.mark.parametrize("kind", list(RequestOutputKind))
async def test_several_answers_to_one_prompt(engine: AsyncLLM, kind: RequestOutputKind) -> None:
    """Each is what its own seed gives alone."""
    params = SamplingParams(seed=3, max_tokens=6, ignore_eos=True, logprobs=0)
    alone = [(await last(engine, FRANCE, replace(params, seed=seed))).outputs[0] for seed in (3, 4, 5)]
    outputs = [output async for output in engine.generate(FRANCE, replace(params, n=3, output_kind=kind))]
    parts = [part for output in outputs for part in output.outputs]
    for index, one in enumerate(alone):
        mine = [part for part in parts if part.index == index]
        tokens = [token for part in mine for token in part.token_ids]
        assert (tokens if kind is RequestOutputKind.DELTA else mine[-1].token_ids) == one.token_ids
        assert [part.finish_reason for part in mine] == [None] * (len(mine) - 1) + ["length"]
        assert mine[-1].cumulative_logprob == pytest.approx(one.cumulative_logprob, abs=1e-3)
    assert len({tuple(one.token_ids) for one in alone}) == 3
    assert outputs[-1].metrics.num_generation_tokens == 18
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    await wait_idle(engine)


@on_both_loops
async def test_more_requests_than_rows_all_finish(engine: AsyncLLM) -> None:
    alone = await last(engine, FRANCE, GREEDY)
    outputs = await asyncio.gather(*(last(engine, FRANCE, GREEDY) for _ in range(20)))
    assert all(output.outputs == alone.outputs for output in outputs)
    await wait_idle(engine)


@on_both_loops
async def test_a_slow_consumer_loses_nothing(engine: AsyncLLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    fast = (await last(engine, FRANCE, GREEDY)).outputs[0]
    collector = await engine.add_request("slow", FRANCE, params)
    await last(engine, FRANCE, SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))  # meanwhile
    parts = [await collector.get()]
    while not parts[-1].finished:
        parts.append(await collector.get())
    tokens = [token for part in parts for token in part.outputs[0].token_ids]
    assert len(parts) < 20
    assert len(tokens) == 20
    assert tokens[:12] == fast.token_ids


@on_both_loops
@pytest.mark.parametrize("how", ["break", "cancel", "close", "abort"])
async def test_leaving_frees_everything(engine: AsyncLLM, how: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    started = asyncio.Event()
    reasons = []

    async def consume() -> None:
        async for output in engine.generate(FRANCE, params, "leaver"):
            started.set()
            reasons.append(output.outputs[0].finish_reason)
            if how == "break":
                break

    if how == "close":
        generator = engine.generate(FRANCE, params)
        await anext(generator)
        await generator.aclose()
    else:
        task = asyncio.ensure_future(consume())
        await started.wait()
        if how == "cancel":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif how == "abort":
            await engine.abort("leaver")
            await task
            assert reasons[-1] == "abort"
        else:
            await task
    await wait_idle(engine)
    if how != "break":  # a generator that was only left is closed by the loop, in a moment
        assert engine.num_unfinished_requests == 0


@on_both_loops
async def test_cancelled_while_it_waits_for_a_row(engine: AsyncLLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    running = [asyncio.ensure_future(last(engine, FRANCE, params)) for _ in range(8)]
    waiting = await engine.add_request("waiting", FRANCE, params)
    waiting.close()
    outputs = await asyncio.gather(*running)
    assert all(len(output.outputs[0].token_ids) == 20 for output in outputs)
    with pytest.raises(RequestEnded):
        waiting.get_nowait()
    await wait_idle(engine)


async def test_one_id_for_several_requests(engine: AsyncLLM) -> None:
    prompts = [FRANCE, "Once upon a time", "def main():"]
    alone = [await last(engine, prompt, GREEDY) for prompt in prompts]

    async def run(prompt: str) -> RequestOutput:
        *_, output = [output async for output in engine.generate(prompt, GREEDY, "same")]
        return output

    together = await asyncio.gather(*map(run, prompts))
    assert [output.request_id for output in together] == ["same"] * 3
    assert [output.outputs for output in together] == [output.outputs for output in alone]


BAD_PROMPTS = [
    "",
    "\u0004",
    [],
    [49152],
    [-1],
    [True],
    [1.5],
    ["a"],
    [1, None],
    7,
    None,
    {"text": "x"},
    {},
    "a\ud83d",
    [5] * 256,
]


@pytest.mark.parametrize("prompt", BAD_PROMPTS, ids=lambda prompt: repr(prompt)[:20])
async def test_bad_prompts_fail_alone(engine: AsyncLLM, prompt: object) -> None:
    good = asyncio.ensure_future(last(engine, FRANCE, SamplingParams(temperature=0, max_tokens=2)))
    with pytest.raises(ValueError, match="prompt"):
        await last(engine, prompt, GREEDY)  # type: ignore[arg-type]
    assert (await good).outputs[0].text.startswith(" Paris")
    assert engine.num_unfinished_requests == 0


async def test_errors_name_field_and_value(engine: AsyncLLM) -> None:
    with pytest.raises(ValueError, match=r"prompt must hold token ids from 0 to 49151, got 49152"):
        await last(engine, [49152], GREEDY)
    with pytest.raises(ValueError, match=r"stop_token_ids must hold token ids from 0 to 49151, got 50000"):
        await last(engine, FRANCE, SamplingParams(stop_token_ids=[50000]))
    with pytest.raises(ValueError, match=r"sampling_params must be a SamplingParams, got \{"):
        await last(engine, FRANCE, {"temperature": 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"prompt has 256 tokens; with max_model_len=256 it may have at most 255"):
        await last(engine, [5] * 256, GREEDY)


async def test_the_callers_objects_stay_as_they_are(engine: AsyncLLM) -> None:
    ids, stops, bias = list(FRANCE_IDS), [3, 4], {DEF: 100.0}
    params = SamplingParams(temperature=0, max_tokens=4, stop_token_ids=stops, logit_bias=bias)
    before = copy.deepcopy((ids, stops, bias, params))
    output = await last(engine, ids, params)
    assert (ids, stops, bias, params) == before
    output.prompt_token_ids.append(1)
    stops.append(DEF)
    bias[EOS] = 200.0
    assert ids == before[0]
    assert params == before[3]
    assert (await last(engine, ids, params)).outputs == output.outputs
