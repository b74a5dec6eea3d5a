"""A session's turns: what the core is sent, what the consumer gets, and what stays in the context."""

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from session_core import EOS, SessionCore, deltas, shown, taken, token_ids
from tiny_checkpoint import write_tiny_llama
from tokenizers import processors

from ringpost import ParameterError, RequestOutputKind, SamplingParams
from ringpost.ipc.messages.requests import Abort, AddRequest, CloseSession

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


def adds(core: SessionCore) -> list[tuple[int, list[int]]]:
    """`base` and prompt of the turns that the core was sent."""
    return [(one.base, one.prompt) for one in core.received if isinstance(one, AddRequest)]


async def test_only_what_is_new_is_sent_and_each_chunk_ends_with_a_boundary(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        assert [await session.append(text) for text in ("ab", "cd", "ef")] == [0, 1, 2]
        assert (session.num_queued, session.is_idle) == (2, False)
        for text, reason in (("xy", "length"), ("z", "stop"), ("uvw", "repetition")):
            await core.say(session, text, reason)  # type: ignore[arg-type]
        outputs = taken(session)
        assert [shown(output) for output in outputs] == [
            ("xy", "length", 3, False),
            ("z", "stop", 6, False),
            ("uvw", "repetition", 10, False),
        ]
        assert [output.boundary and output.boundary.chunk for output in outputs] == [0, 1, 2]
        assert [output.boundary and output.boundary.num_tokens for output in outputs] == [2, 2, 3]
        assert [(output.prompt, output.prompt_token_ids) for output in outputs] == [
            ("ab", token_ids("ab")),
            ("cd", token_ids("abxcd")),
            ("ef", token_ids("abxcdzef")),
        ]
        assert adds(core) == [(0, token_ids("ab")), (3, token_ids("cd")), (6, token_ids("ef"))]
        assert session.context == token_ids("abxcdzefuv")
        assert session.is_idle


async def test_the_last_token_stays_by_choice(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        await session.append("a", keep_last_token=True)
        await core.say(session, "xy", "length")
        await session.append("b", keep_last_token=True)
        await core.say(session, "z", "stop")
        await session.append("c")
        await core.settle()
        assert adds(core)[1:] == [(3, token_ids("b")), (6, token_ids("c"))]
        assert session.context == [*token_ids("axybz"), EOS, *token_ids("c")]


@pytest.mark.parametrize("kind", ["delta", "cumulative", "final_only"])
async def test_outputs_never_span_two_chunks(tiny: str, kind: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open(deltas(output_kind=kind))
        await session.append("a")
        await session.append("b")
        await core.say(session, "x")
        early = taken(session)
        await core.say(session, "yz", "length")
        await core.say(session, "uv")
        await core.say(session, "w", "length")
        session.finish()
        late = taken(session)
        expected: dict[str, list[list[Any]]] = {
            "delta": [[("x", None, None, False)], [("yz", "length", 3, False), ("uvw", "length", 6, True)]],
            "cumulative": [[("x", None, None, False)], [("xyz", "length", 3, False), ("uvw", "length", 6, True)]],
            "final_only": [[], [("xyz", "length", 3, False), ("uvw", "length", 6, True)]],
        }
        assert [[shown(output) for output in outputs] for outputs in (early, late)] == expected[kind]


async def test_cumulative_prompt_and_tokens_are_the_sequence(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open(deltas(output_kind=RequestOutputKind.CUMULATIVE))
        for text in ("ab", "cd"):
            await session.append(text)
            await core.say(session, "x")
            (output,) = taken(session)
            assert [*output.prompt_token_ids, *output.outputs[0].token_ids] == session.context
            await core.say(session, "y", "length")
            taken(session)


async def test_a_turn_whose_first_token_ends_it(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        await session.append("ab")
        await core.say(session, "xyz", "length")
        await session.append("c")
        await core.say(session, "", "stop")
        await session.append("d")
        await core.say(session, "u", "length")
        assert [shown(output) for output in taken(session)] == [
            ("xyz", "length", 4, False),
            ("", "stop", 5, False),
            ("u", "length", 6, False),
        ]
        assert session.context == token_ids("abxycd")


async def test_each_chunks_parameters_are_its_own(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open(deltas(max_tokens=3, stop="!", logprobs=0))
        await session.append("a")
        await session.append("b", deltas(max_tokens=5, stop=["z"], seed=9))
        await session.append("c")
        await core.say(session, "x!")
        await core.say(session, "!yz")
        await core.say(session, "u", "length")
        first, second, third = taken(session)
        assert [(one.outputs[0].text, one.outputs[0].stop_reason) for one in (first, second, third)] == [
            ("x", "!"),
            ("!y", "z"),
            ("u", None),
        ]
        assert [one.boundary and one.boundary.stop_reason for one in (first, second, third)] == ["!", "z", None]
        assert [one.outputs[0].logprobs is None for one in (first, second, third)] == [False, True, False]
        params = [one.params for one in core.received if isinstance(one, AddRequest)]
        assert [(one.max_tokens, one.seed) for one in params] == [(3, 1), (5, 9), (3, 1)]


@pytest.mark.parametrize(
    ("keep", "include", "kept"),
    [(False, False, "ab"), (True, False, "abSTOP"), (False, True, "abSTO"), (True, True, "abSTOP")],
)
async def test_what_a_stop_string_leaves_in_the_context(tiny: str, keep: bool, include: bool, kept: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open(deltas(stop="STOP", include_stop_str_in_output=include))
        await session.append("q", keep_last_token=keep)
        await session.append("r")
        await core.settle()
        core.generate(session, "abSTOPmore")
        core.deliver()
        await core.settle()
        assert [shown(output)[:2] for output in taken(session)] == [("abSTOP" if include else "ab", "stop")]
        first, second = (one for one in core.received if isinstance(one, AddRequest))
        assert Abort(first.request) in core.received[: core.received.index(second)], "the core is told before the next turn"
        assert (second.base, second.prompt) == (1 + len(kept), token_ids("r"))
        assert session.context == token_ids("q" + kept + "r")


async def test_a_token_that_holds_a_part_of_a_stop_string_goes(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open(deltas(stop="eé"))
        await session.append("q")
        merged = 3 + 256 + 1  # "he"
        await core.say(session, [*token_ids("a"), merged, *token_ids("é")])
        assert [shown(output) for output in taken(session)] == [("ah", "stop", 2, False)]
        assert session.context == token_ids("qa")


async def test_a_session_without_input_ends_with_an_output(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        session.finish()
        assert [shown(output) for output in taken(session)] == [("", "stop", None, True)]
        await core.settle()
        assert core.received == []
        assert len(core.sessions) == 0


async def test_finishing_when_idle_gives_a_last_output(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        await session.append("a")
        await core.say(session, "xy", "length")
        assert [shown(output) for output in taken(session)] == [("xy", "length", 2, False)]
        session.finish()
        (last,) = taken(session)
        assert (shown(last), last.request_id, last.outputs[0].stop_reason) == (("", "length", None, True), "s", None)
        await core.settle()
        assert isinstance(core.received[-1], CloseSession)
        assert not core.core_contexts


async def test_what_is_queued_when_the_input_ends_is_answered(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        await session.append("a")
        await session.append("b")
        session.finish()
        await core.say(session, "x", "length")
        await core.say(session, "y", "length")
        assert [output async for output in session][-1].finished
        await core.settle()
        assert not core.core_contexts


async def test_special_tokens_and_empty_chunks(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        empties: tuple[Any, ...] = ("", [], {"prompt_token_ids": []})
        for empty in empties:
            with pytest.raises(ParameterError, match="empty"):
                await session.append(empty)
        await session.append("a")
        with pytest.raises(ParameterError, match="empty"):
            await session.append("")
        await core.say(session, "xy", "length")
        assert len(taken(session)) == 1
        assert session.context == token_ids("ax")


@pytest.fixture
def beginning(tmp_path: Path) -> str:
    """A model whose tokenizer puts token 1 before a whole prompt."""
    model = write_tiny_llama(tmp_path, max_position_embeddings=8192)
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    tokenizer.save(str(model / "tokenizer.json"))
    return str(model)


async def test_a_context_begins_with_special_tokens_though_it_was_emptied_while_a_chunk_waited(beginning: str) -> None:
    async with SessionCore(beginning, max_queued_chunks=1).running() as core:
        session = core.open()
        await session.append("ab")
        await session.append("cd")
        third = asyncio.create_task(session.append("ef"))
        await core.settle()
        assert (session.retract(), session.retract()) == (3, 0)
        await third
        taken(session)
        await core.settle()
        assert session.context == [1, *token_ids("ef")]


async def test_a_context_begins_with_special_tokens_though_it_was_rewound_while_a_chunk_was_tokenised(beginning: str) -> None:
    long = "z" * 5000  # which a thread tokenises
    async with SessionCore(beginning, num_blocks=600, mailbox_bytes=1 << 20).running() as core:
        session = core.open()
        await session.append("one")
        await core.say(session, "x", "length")
        second = asyncio.create_task(session.append(long))
        await asyncio.sleep(0)
        assert session.is_idle
        session.rewind(0)
        await second
        assert session.context == [1, *token_ids(long)]


async def test_callers_objects_are_theirs(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        tokens, stops, bias = token_ids("ab"), ["!"], {5: 1.0}
        params = deltas(stop=stops, logit_bias=bias)
        before = copy.deepcopy((tokens, stops, bias, params))
        session = core.open(params)
        await session.append(tokens)
        tokens.append(7)
        await core.say(session, "xy", "length")
        tokens.pop()
        (output,) = taken(session)
        for mine in (session.context, output.prompt_token_ids):
            mine += [9, 9, 9]
        await session.append(token_ids("c"), SamplingParams(max_tokens=1))
        await core.say(session, "z", "length")
        assert (tokens, stops, bias, params) == before
        assert session.context == token_ids("abxc")
        assert adds(core) == [(0, token_ids("ab")), (3, token_ids("c"))]


async def test_a_restarted_core_gets_the_whole_context_once(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        running, idle, waiting = core.open(), core.open(), core.open()
        for session in (running, idle):
            await session.append("a")
            await core.say(session, "xy", "length")
        await running.append("b")
        await core.say(running, "uv")
        core.die()
        await waiting.append("w")
        await core.settle()
        ((_, resumed), (_, first)) = core.turns.items()
        assert (resumed.add.base, resumed.context, resumed.output) == (0, token_ids("axb"), token_ids("uv"))
        assert first.context == token_ids("w")
        await core.say(running, "w", "length")
        for session in (running, idle):
            await session.append("c")
            await core.settle()
        assert adds(core)[-2:] == [(5, token_ids("c")), (0, token_ids("axc"))]
        assert running.context == token_ids("axbuvc")


async def test_an_abort_that_overtakes_its_turn_costs_nothing_but_work(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        await session.append("a")
        await core.say(session, "xy", "length")
        await session.append("b")
        for _ in range(5):  # it is sent, and the core is busy
            await asyncio.sleep(0)
        assert session.interrupt() == 3
        await session.append("c")
        await core.settle()
        assert adds(core) == [(0, token_ids("a")), (2, token_ids("bc"))], "the turn of b never reached the core"
