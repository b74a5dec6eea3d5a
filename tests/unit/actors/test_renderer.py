"""The renderer: text and conversations to tokens."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import FIRST_BYTE_ID, tiny_tokenizer, write_tiny_llama

from ringpost.actors.frontend.renderer import Renderer
from ringpost.ipc.messages.config import Checkpoint
from ringpost.ipc.messages.errors import ParameterError
from ringpost.ipc.messages.sampling import SamplingParams


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model")


def renderer(directory: Path) -> Renderer:
    return Renderer(Checkpoint(tokenizer_directory=str(directory)))


def change_tokenizer_config(directory: Path, **changes: Any) -> None:
    file = directory / "tokenizer_config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


@pytest.mark.parametrize("content", [None, "", "{", '{"model": 5}'])
def test_a_missing_or_broken_tokenizer_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=rf"tokenizer {tmp_path}/tokenizer\.json cannot be loaded"):
        renderer(tmp_path)


@pytest.mark.parametrize("length", [10, 4096, 4097, 9000])
def test_short_and_long_texts_give_the_same_tokens(directory: Path, length: int) -> None:
    text = ("aé" * length)[:length]
    assert asyncio.run(renderer(directory).encode(text)) == [FIRST_BYTE_ID + byte for byte in text.encode()]


def test_a_prompt_is_neither_cut_nor_filled_up(directory: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.enable_truncation(max_length=4)
    tokenizer.enable_padding(length=8, pad_id=0, pad_token="<|endoftext|>")
    tokenizer.save(str(directory / "tokenizer.json"))
    for count in (2, 12):
        assert asyncio.run(renderer(directory).encode("b" * count)) == [FIRST_BYTE_ID + ord("b")] * count


def test_a_conversation_is_rendered_for_the_assistants_turn(directory: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert renderer(directory).render_chat(messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_in_a_file_of_its_own_comes_first(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("é{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", encoding="utf-8")
    change_tokenizer_config(directory, bos_token={"content": "<B>"})
    assert renderer(directory).render_chat([{"role": "user", "content": "Hi"}]) == "é<B>Hi<|im_end|>"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content.no_such.thing }}",
        "{% if %}",
        "{{ ''.__class__ }}{{ 1/'a' }}",
    ],
)
def test_a_template_that_refuses_is_a_value_error(directory: Path, template: str) -> None:
    change_tokenizer_config(directory, chat_template=template)
    with pytest.raises(ValueError, match="messages: the chat template refuses them"):
        renderer(directory).render_chat([{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize("template", [None, [], [{"name": "tool_use", "template": "x"}]])
def test_a_model_without_a_template_says_so(directory: Path, template: Any) -> None:
    change_tokenizer_config(directory, chat_template=template)
    with pytest.raises(ParameterError, match=r"^messages: the model has no chat template; send a prompt instead$") as caught:
        renderer(directory).render_chat([{"role": "user", "content": "Hi"}])
    assert caught.value.parameter == "messages"
    (directory / "tokenizer_config.json").unlink()
    with pytest.raises(ParameterError, match="no chat template"):
        renderer(directory).render_chat([{"role": "user", "content": "Hi"}])


def test_of_several_templates_the_default_is_taken(directory: Path) -> None:
    templates = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    change_tokenizer_config(directory, chat_template=templates)
    assert renderer(directory).render_chat([{"role": "user", "content": "Hi"}]) == "yes"


def test_the_template_is_read_once(directory: Path) -> None:
    one = renderer(directory)
    change_tokenizer_config(directory, chat_template="changed")
    assert one.render_chat([{"role": "user", "content": "Hi"}]) != "changed"


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"\xff",
        b'{"chat_template": "\xff"}',
        b'{"chat_template": ["x"]}',
        b'{"chat_template": [{"name": "default"}]}',
        b'{"chat_template": 5}',
        b'{"bos_token": {"text": "x"}}',
    ],
)
def test_a_broken_tokenizer_config_is_named(directory: Path, content: bytes) -> None:
    file = directory / "tokenizer_config.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=str(file)):
        renderer(directory)


def test_a_broken_template_file_is_named(directory: Path) -> None:
    file = directory / "chat_template.jinja"
    file.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=str(file)):
        renderer(directory)


def test_special_tokens_of_the_model_are_known(directory: Path) -> None:
    one = renderer(directory)
    tokens = asyncio.run(one.encode("<|im_start|>a<|im_end|>"))
    assert tokens == [1, FIRST_BYTE_ID + ord("a"), 2]
    words = [one.words(SamplingParams(skip_special_tokens=skip)) for skip in (True, False)]
    assert [each.detokenizer().push(tokens) for each in words] == ["a", "<|im_start|>a<|im_end|>"]
    assert [words[0].bytes_of(token) for token in tokens] == [b"<|im_start|>", b"a", b"<|im_end|>"]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], r"messages must be a list of at least one message, got \[\]"),
        ("hi", "messages must be a list of at least one message, got 'hi'"),
        (["hi"], r"messages\[0\] must be a dict with role and content, got 'hi'"),
        ([{"role": "user"}], r"messages\[0\].content must be text, or a list of parts of type text, got None"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content must be text"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], r"messages\[0\].content must be text"),
    ],
)
def test_messages_that_no_template_is_shown(directory: Path, messages: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=f"^{message}"):
        renderer(directory).render_chat(messages)


def test_parts_of_text_are_joined(directory: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    one = renderer(directory)
    assert one.render_chat([{"role": "user", "content": parts}]) == one.render_chat([{"role": "user", "content": "a\nb"}])
