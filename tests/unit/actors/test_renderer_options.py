"""The renderer without a tokenizer, without text, with bad words, with transformers' tokenizer, and with long prompts."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import FIRST_BYTE_ID, write_tiny_llama

from ringpost.actors.frontend import renderer as module
from ringpost.actors.frontend.renderer import Renderer
from ringpost.ipc.blocking import BlockingLoop
from ringpost.ipc.messages.config import Checkpoint, ModelConfig
from ringpost.ipc.messages.errors import ParameterError
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.model_runner.checkpoint.resolve import resolve_checkpoint

TOKENS = [FIRST_BYTE_ID + byte for byte in b"ab"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return resolve_checkpoint(ModelConfig(model=str(write_tiny_llama(tmp_path / "model"))))


@pytest.fixture
def without(tmp_path: Path) -> Renderer:
    return Renderer(Checkpoint(tokenizer_directory=str(tmp_path / "nothing is there")), skip_tokenizer_init=True)


@pytest.fixture(scope="module")
def demo() -> Renderer:
    return Renderer(resolve_checkpoint(ModelConfig()))


def test_without_a_tokenizer_there_are_only_ids(without: Renderer) -> None:
    words = without.words(SamplingParams(detokenize=False))
    detokenizer = words.detokenizer()
    assert (detokenizer.push(TOKENS), detokenizer.flush(), words.bytes_of(5)) == ("", "", b"")


@pytest.mark.parametrize(
    ("use", "parameter"),
    [
        (lambda one: asyncio.run(one.encode("a")), "prompt"),
        (lambda one: one.words(SamplingParams()), "detokenize"),
        (lambda one: one.bad_word_ids(["a"]), "bad_words"),
        (lambda one: asyncio.run(one.encode_chat([{"role": "user", "content": "a"}])), "messages"),
    ],
)
def test_without_a_tokenizer_text_is_refused_by_its_parameter(without: Renderer, use: Any, parameter: str) -> None:
    with pytest.raises(ParameterError, match=rf"^{parameter} .*skip_tokenizer_init") as caught:
        use(without)
    assert caught.value.parameter == parameter


def test_without_a_tokenizer_there_is_none_to_get(without: Renderer) -> None:
    with pytest.raises(ValueError, match="skip_tokenizer_init"):
        asyncio.run(without.get_tokenizer())


def test_an_answer_without_text(checkpoint: Checkpoint) -> None:
    words = Renderer(checkpoint).words(SamplingParams(detokenize=False))
    detokenizer = words.detokenizer()
    assert (detokenizer.push(TOKENS), detokenizer.flush(), words.bytes_of(TOKENS[0])) == ("", "", b"a")


def test_a_word_is_banned_at_the_start_and_behind_a_space(demo: Renderer) -> None:
    exaggerated = ((888, 12895, 483), (24098,))
    assert demo.bad_word_ids(["exaggerated"]) == exaggerated
    assert demo.bad_word_ids([" exaggerated", "exaggerated"]) == exaggerated
    assert demo.bad_word_ids([]) == ()
    assert demo.bad_word_ids(["\n"])[0] == (198,)


def test_a_word_that_gives_no_tokens_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers  # noqa: PLC0415

    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "Ġ": 1}, merges=[]))
    tokenizer.normalizer = normalizers.Replace("x", "")
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    one = Renderer(Checkpoint(tokenizer_directory=str(tmp_path), vocab_size=2))
    assert one.bad_word_ids(["ax"]) == ((0,),)
    with pytest.raises(ParameterError, match=r"^bad_words must hold words that give tokens, got 'x'$"):
        one.bad_word_ids(["a", "x"])


def test_ids_that_the_model_never_says_are_left_out(checkpoint: Checkpoint) -> None:
    small = Checkpoint(tokenizer_directory=checkpoint.tokenizer_directory, vocab_size=FIRST_BYTE_ID + ord("b"))
    assert Renderer(small).bad_word_ids(["a", "b"])[0] == (FIRST_BYTE_ID + ord("a"),)
    assert all(max(ids) < small.vocab_size for ids in Renderer(small).bad_word_ids(["a", "b", "aab"]))


@pytest.mark.asyncio
async def test_transformers_tokenizer_is_loaded_once(checkpoint: Checkpoint) -> None:
    one = Renderer(checkpoint)
    first, second = await asyncio.gather(one.get_tokenizer(), one.get_tokenizer())
    assert first is second is BlockingLoop().run(one.get_tokenizer())
    assert first.decode(TOKENS) == "ab"


class Waiting:
    """A tokenizer that begins its work when it is let."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.may_begin = threading.Event()

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> Any:
        self.may_begin.wait()
        return self.real.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


@pytest.mark.asyncio
@pytest.mark.parametrize("chat", [False, True])
async def test_the_loop_goes_on_while_a_long_prompt_is_tokenised(checkpoint: Checkpoint, chat: bool) -> None:
    one = Renderer(checkpoint)
    assert one._vocabulary is not None
    waiting = Waiting(one._vocabulary.tokenizer)
    one._vocabulary.tokenizer = waiting  # type: ignore[assignment]
    one._max_model_len = 0
    text = "a" * (module._INLINE_CHARACTERS + 1)
    work = one.encode_chat([{"role": "user", "content": text}]) if chat else one.encode(text)
    task = asyncio.create_task(work)
    for _ in range(100):  # it could not turn once, were the work done here
        await asyncio.sleep(0)
    assert not task.done()
    waiting.may_begin.set()
    assert (await task).count(FIRST_BYTE_ID + ord("a")) >= len(text)
