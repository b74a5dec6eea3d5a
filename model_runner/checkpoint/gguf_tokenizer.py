"""The byte-level BPE tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json."""

from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from .errors import CheckpointError
from .gguf_metadata import Metadata, optional, require, token_id

CONTROL, USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS_AND_SPACES = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(pattern: str) -> Any:
    pieces = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# tokenizer.ggml.pre -> how text is split before the merges.
SPLITS: dict[str, Callable[[], Any]] = {
    "smollm": _smollm,
    "gpt-2": _gpt2,
    "default": _gpt2,
    "llama-bpe": lambda: _split(WORDS_AND_SPACES % "{1,3}"),
    "qwen2": lambda: _split(WORDS_AND_SPACES % ""),
}


def check_tokenizer(metadata: Metadata) -> None:
    """Raise CheckpointError for a tokenizer whose token ids the conversion would get wrong."""
    model = require(metadata, "tokenizer.ggml.model", str)
    if model != "gpt2":
        raise CheckpointError(f"tokenizer.ggml.model of the GGUF file is {model!r}, supported: gpt2 (byte-level BPE)")
    pre = require(metadata, "tokenizer.ggml.pre", str)
    if pre not in SPLITS:
        raise CheckpointError(f"tokenizer.ggml.pre of the GGUF file is {pre!r}, supported: {', '.join(SPLITS)}")


def adds_bos(metadata: Metadata) -> bool:
    """Whether a prompt gets the beginning-of-sequence token put in front."""
    return bool(optional(metadata, "tokenizer.ggml.add_bos_token", bool, metadata["tokenizer.ggml.pre"] == "llama-bpe"))


def build_tokenizer(metadata: Metadata) -> Tokenizer:
    """The tokenizer that tokenizer.json describes."""
    pre = metadata["tokenizer.ggml.pre"]
    tokens = require(metadata, "tokenizer.ggml.tokens", list)
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise CheckpointError(f"tokenizer.ggml.tokens of the GGUF file has {len(tokens) - len(vocab)} repeated tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in require(metadata, "tokenizer.ggml.merges", list)]
    try:
        model = models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe")
    except Exception as error:
        raise CheckpointError(f"tokenizer.ggml.merges of the GGUF file do not fit its tokens: {error}") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = SPLITS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    kinds = zip(tokens, require(metadata, "tokenizer.ggml.token_type", list), strict=False)
    added = [(token, kind == CONTROL) for token, kind in kinds if kind in (CONTROL, USER_DEFINED)]
    tokenizer.add_tokens([AddedToken(token, special=special, normalized=False) for token, special in added])
    if adds_bos(metadata):
        bos = _special(metadata, "bos")
        if bos is None:
            raise CheckpointError("the GGUF file asks for a token before each prompt, but has no valid bos_token_id")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", f"{bos}:1", "$B:1"], special_tokens=[(bos, vocab[bos])]
        )
    return tokenizer


def tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    """tokenizer_config.json: the chat template and the tokens with a role."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": optional(metadata, "tokenizer.chat_template", str, None),
        "bos_token": _special(metadata, "bos"),
        "eos_token": _special(metadata, "eos"),
        "pad_token": _special(metadata, "padding"),
        "add_bos_token": adds_bos(metadata),
        "model_max_length": require(metadata, "llama.context_length", int),
        "clean_up_tokenization_spaces": False,
    }
    return {key: value for key, value in config.items() if value is not None}


def _special(metadata: Metadata, role: str) -> str | None:
    """The text of the token with this role, if the file names one."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    index = token_id(metadata, role)
    return tokens[index] if index is not None and index < len(tokens) else None
