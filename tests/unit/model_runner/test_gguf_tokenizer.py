"""Tokenizers built from GGUF metadata: how text is split, the token in front, and the demo model's golden ids."""

from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import tiny_config
from tiny_gguf import tiny_metadata
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from ringpost.ipc.messages.config import Checkpoint, ModelConfig
from ringpost.model_runner.checkpoint.gguf_tokenizer import build_tokenizer
from ringpost.model_runner.checkpoint.resolve import resolve_checkpoint

GOLDEN = {
    "Hello world": [19556, 905],
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "DEF": [33203],
    "\n": [198],
    "\n\n": [1116],
    ".": [30],
    " one": [582],
    " exaggerated": [24098],
    "exaggerated": [888, 12895, 483],
    "In 2024, 1234567 people": [788, 216, 34, 32, 34, 36, 28, 216, 33, 34, 35, 36, 37, 38, 39, 701],
    "x = 10\n    return x  # 2 spaces\n\tpass": (
        [104, 446, 216, 33, 32, 472, 1003, 1792, 216, 907, 216, 34, 5600, 198, 197, 5467]
    ),
    "def f(n):\n        if n < 2:\n            return 1": (
        [1604, 275, 24, 94, 727, 448, 585, 304, 2067, 216, 34, 42, 629, 1003, 216, 33]
    ),
    "👍": [10813, 235, 231],
    "👍🏽 ok": [10813, 235, 231, 10813, 233, 138, 10907],
    "日本語のテキスト": [23274, 115, 40993, 179, 120, 248, 26453, 11100, 224, 10391, 251, 10391, 134, 11100, 226],
    "naïve café Œuvre": [3546, 46494, 37366, 18811, 236, 36874],
    "a  b   c    d": [81, 216, 278, 256, 265, 333, 287],
    " leading and trailing ": [2899, 284, 35079, 216],
    "line\r\n\r\nline\n\n\nend": [1311, 7209, 198, 1311, 1116, 198, 486],
    "<|im_start|>user\nHi<|im_end|>\n": [1, 4093, 198, 26843, 2, 198],
    "don't we'll I'M": [12420, 982, 392, 3060, 339, 23, 61],
    "½ x² ٣": [16738, 1792, 19133, 216, 164, 113],
    "https://example.com/a?b=1&c=%20": [4687, 1742, 7434, 30, 824, 31, 81, 47, 82, 45, 33, 22, 83, 23446, 34, 32],
}


@pytest.fixture(scope="module")
def demo() -> Checkpoint:
    return resolve_checkpoint(ModelConfig())


@pytest.fixture(scope="module")
def demo_tokenizer(demo: Checkpoint) -> Tokenizer:
    return Tokenizer.from_file(str(Path(demo.tokenizer_directory, "tokenizer.json")))


def tiny(**metadata: Any) -> Tokenizer:
    changes = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    return build_tokenizer(tiny_metadata(tiny_config()) | changes)


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    """`text` as it is split before the merges."""
    assert tokenizer.pre_tokenizer is not None
    return [text[start:end] for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def test_the_demo_model_is_what_it_should_be(demo: Checkpoint) -> None:
    assert demo.architecture == "LlamaForCausalLM"
    assert (demo.vocab_size, demo.eos_token_ids, demo.max_model_len) == (49152, (2,), 8192)


@pytest.mark.parametrize("text", GOLDEN)
def test_golden_ids_of_the_demo_model(demo_tokenizer: Tokenizer, text: str) -> None:
    ids = demo_tokenizer.encode(text).ids
    assert ids == GOLDEN[text]
    assert demo_tokenizer.decode(ids, skip_special_tokens=False) == text


def test_digits_are_split_singly(demo_tokenizer: Tokenizer) -> None:
    assert demo_tokenizer.encode("12345").tokens == ["1", "2", "3", "4", "5"]


def test_bytes_that_the_demo_model_lacks_vanish(demo_tokenizer: Tokenizer) -> None:
    vocab = demo_tokenizer.get_vocab()
    assert sum(character not in vocab for character in ByteLevel.alphabet()) == 21
    assert demo_tokenizer.encode("\u0004").ids == []


@pytest.mark.parametrize(
    ("pre", "wanted"),
    [
        ("smollm", ["It", "'s", " ", "2", "0", "2", "4", "!!", " ", " x", "\n", "\n", "y"]),
        ("gpt-2", ["It", "'s", " 2024", "!!", " ", " x", "\n", "\n", "y"]),
        ("default", ["It", "'s", " 2024", "!!", " ", " x", "\n", "\n", "y"]),
        ("llama-bpe", ["It", "'s", " ", "202", "4", "!!", " ", " x", "\n\n", "y"]),
        ("qwen2", ["It", "'s", " ", "2", "0", "2", "4", "!!", " ", " x", "\n\n", "y"]),
    ],
)
def test_how_text_is_split(pre: str, wanted: list[str]) -> None:
    assert pieces(tiny(pre=pre), "It's 2024!!  x\n\ny") == wanted


def test_only_the_newer_splits_take_contractions_in_capitals() -> None:
    assert pieces(tiny(pre="gpt-2"), "I'LL") == ["I", "'", "LL"]
    assert pieces(tiny(pre="qwen2"), "I'LL") == ["I", "'LL"]


def test_qwen2_composes_accents() -> None:
    assert tiny(pre="qwen2").encode("e\u0301").ids == tiny(pre="qwen2").encode("é").ids
    assert tiny(pre="gpt-2").encode("e\u0301").ids != tiny(pre="gpt-2").encode("é").ids


def test_llama_bpe_takes_a_whole_word_of_the_vocabulary_without_merges() -> None:
    tokens = [*tiny_metadata(tiny_config())["tokenizer.ggml.tokens"], "zebra"]
    assert tiny(pre="llama-bpe", tokens=tokens, add_bos_token=False).encode("zebra").tokens == ["zebra"]
    assert tiny(pre="gpt-2", tokens=tokens).encode("zebra").tokens == ["z", "e", "b", "r", "a"]


def test_the_beginning_of_sequence_is_put_in_front_where_the_file_says_so() -> None:
    plain = tiny().encode("the").ids
    with_bos = tiny(add_bos_token=True)
    assert with_bos.encode("the").ids == [1, *plain]
    assert with_bos.encode("the", add_special_tokens=False).ids == plain
    assert with_bos.encode("").ids == [1]


def test_llama_bpe_puts_it_in_front_unless_the_file_says_no() -> None:
    metadata = {key: value for key, value in tiny_metadata(tiny_config()).items() if not key.endswith("add_bos_token")}
    assert build_tokenizer(metadata | {"tokenizer.ggml.pre": "llama-bpe"}).encode("a").ids[0] == 1
    assert build_tokenizer(metadata).encode("a").ids[0] != 1


def test_user_defined_tokens_are_whole_but_not_special() -> None:
    metadata = tiny_metadata(tiny_config())
    tokens = [*metadata["tokenizer.ggml.tokens"], "<think>"]
    tokenizer = tiny(tokens=tokens, token_type=[*metadata["tokenizer.ggml.token_type"], 4])
    ids = tokenizer.encode("a<think>").ids
    assert ids[-1] == len(tokens) - 1
    assert tokenizer.decode(ids) == "a<think>"
