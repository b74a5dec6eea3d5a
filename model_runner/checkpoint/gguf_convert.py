"""Conversion of a llama GGUF file into a directory in Hugging Face layout: weights in bfloat16, and the file's blocks beside.

Imports gguf and numpy; import this module only where a file is about to be converted.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
from numpy.typing import NDArray

from .errors import CheckpointError
from .gguf_metadata import Metadata, check_architecture, generation_config, model_config
from .gguf_tensors import N, blocks_of, dequantized, hugging_face_names, shape_of, unpermuted
from .gguf_tokenizer import build_tokenizer, check_tokenizer, tokenizer_config
from .progress import progress
from .safetensors_file import TensorSpec, write_safetensors
from .weight_files import BLOCKS_FILE, SINGLE_FILE


def convert_gguf(path: Path, directory: Path) -> None:
    """Fill `directory` from the GGUF file `path`. Raises CheckpointError, naming the file, where it cannot."""
    try:
        metadata, tensors = _read(path)
        check_architecture(metadata)
        check_tokenizer(metadata)
        tied = "output.weight" not in tensors
        vocab_size = shape_of(tensors["token_embd.weight"])[0] if "token_embd.weight" in tensors else 0
        config = model_config(metadata, vocab_size=vocab_size, tied=tied)
        names = hugging_face_names(config["num_hidden_layers"], tied=tied)
        _check_tensors(tensors, names, config)
        build_tokenizer(metadata).save(str(directory / "tokenizer.json"))
        _write_json(directory / "tokenizer_config.json", tokenizer_config(metadata))
        _write_json(directory / "generation_config.json", generation_config(metadata))
        _write_json(directory / "config.json", config)
        specs = [TensorSpec(target, "BF16", shape_of(tensors[name])) for name, target in names.items()]
        with progress(f"Converting {path.name}", total=len(specs)) as advance:
            contents = _contents(tensors, names, config)
            write_safetensors(directory / SINGLE_FILE, specs, _counted(contents, advance))
        _keep_blocks(directory / BLOCKS_FILE, tensors, names, config)
    except CheckpointError as error:
        raise CheckpointError(f"{path} cannot be converted: {error}") from error


def _read(path: Path) -> tuple[Metadata, dict[str, Any]]:
    """Metadata and tensors by name; the tensors' data stay in the file until they are looked at."""
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise CheckpointError(f"it is not a GGUF file (it starts with {magic!r}, not b'GGUF')")
    try:
        reader = gguf.GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, LookupError, TypeError, OverflowError, MemoryError) as error:  # whatever nonsense leads to
        raise CheckpointError(f"it is damaged, cut short or of an unknown version ({error})") from error
    if reader.byte_order != "I":
        raise CheckpointError("its byte order is not this machine's")
    return metadata, {tensor.name: tensor for tensor in reader.tensors}


def _check_tensors(tensors: dict[str, Any], names: dict[str, str], config: dict[str, Any]) -> None:
    """Raise CheckpointError unless the tensors are those of the config, in number and shape."""
    if missing := sorted(names.keys() - tensors.keys()):
        raise CheckpointError(f"it lacks {len(missing)} tensors, the first is {missing[0]}")
    if surplus := sorted(tensors.keys() - names.keys()):
        raise CheckpointError(f"it has {len(surplus)} tensors that a plain llama lacks, the first is {surplus[0]}")
    if not config["num_attention_heads"] or not config["num_key_value_heads"] or config["head_dim"] % 2:
        raise CheckpointError(f"it has {config['num_attention_heads']} heads of {config['head_dim']} dimensions")
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    key = config["num_key_value_heads"] * config["head_dim"]
    shapes = {
        "token_embd": (vocab, hidden),
        "output": (vocab, hidden),
        "attn_q": (query, hidden),
        "attn_k": (key, hidden),
        "attn_v": (key, hidden),
        "attn_output": (hidden, query),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    for name in names:
        wanted = shapes.get(name.removesuffix(".weight").rsplit(".", 1)[-1], (hidden,))  # the others are norms
        if shape_of(tensors[name]) != wanted:
            raise CheckpointError(f"tensor {name} has the shape {shape_of(tensors[name])}, its metadata say {wanted}")


def _contents(tensors: dict[str, Any], names: dict[str, str], config: dict[str, Any]) -> Iterator[bytes]:
    for name in names:
        yield _in_order(dequantized(tensors[name]), name, config).tobytes()


def _keep_blocks(path: Path, tensors: dict[str, Any], names: dict[str, str], config: dict[str, Any]) -> None:
    """Write the bytes of tensors whose blocks can be used as they are, named NAME.TYPE; no file if there are none."""
    kept = {name: blocks for name in names if (blocks := blocks_of(tensors[name])) is not None}
    specs = [TensorSpec(f"{names[name]}.{tensors[name].tensor_type.name}", "U8", blocks.shape) for name, blocks in kept.items()]
    if specs:
        write_safetensors(path, specs, (_in_order(blocks, name, config).tobytes() for name, blocks in kept.items()))


def _in_order(rows: NDArray[N], name: str, config: dict[str, Any]) -> NDArray[N]:
    """Rows of a tensor as Hugging Face has them; each stays as it is."""
    heads = {"attn_q.weight": config["num_attention_heads"], "attn_k.weight": config["num_key_value_heads"]}
    num_heads = heads.get(name.split(".", 2)[-1])
    return rows if num_heads is None else unpermuted(rows, num_heads)


def _counted(contents: Iterator[bytes], advance: Any) -> Iterator[bytes]:
    for content in contents:
        yield content
        advance(1)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
