"""Options as users write them."""

import argparse
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ringpost.actors.config import add_engine_arguments, engine_config, engine_options, resolve_config
from ringpost.ipc.messages.config import ApiConfig, Checkpoint, EngineConfig

OPTIONS = {
    field.name
    for group in msgspec.structs.fields(EngineConfig)
    if group.type is not Checkpoint
    for field in msgspec.structs.fields(group.type)
}

SERVER_FIELDS = msgspec.structs.fields(ApiConfig)


def value_of(config: EngineConfig, option: str) -> Any:
    """The value of a flat option."""
    groups = msgspec.to_builtins(config).values()
    return next(group[option] for group in groups if option in group)


def test_no_options_are_the_defaults_and_cross_processes() -> None:
    assert engine_config() == EngineConfig()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(EngineConfig()), type=EngineConfig) == EngineConfig()


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("model", "/some/dir", "/some/dir"),
        ("max_num_seqs", 1, 1),
        ("max_num_seqs", "32", 32),
        ("block_size", "1", 1),
        ("startup_timeout", 5, 5.0),
        ("startup_timeout", "0.5", 0.5),
        ("shutdown_timeout", "0", 0.0),
        ("hang_timeout", "0.5", 0.5),
        ("hang_timeout", 1e6, 1e6),
        ("mailbox_bytes", 1 << 16, 65536),
        ("mailbox_bytes", "1073741824", 1 << 30),
        ("max_model_len", None, None),
        ("max_model_len", "4096", 4096),
        ("tensor_parallel_size", "1", 1),
        ("seed", "0", 0),
        ("seed", 2**63 - 1, 2**63 - 1),
        ("dtype", "bfloat16", "bfloat16"),
        ("loop", "asyncio", "asyncio"),
        ("debug_actors", True, True),
        ("debug_actors", "true", True),
        ("async_scheduling", None, None),
        ("async_scheduling", False, False),
        ("async_scheduling", "true", True),
        ("enable_prefix_caching", False, False),
        ("kv_cache_memory_fraction", None, None),
        ("kv_cache_memory_fraction", "0.5", 0.5),
        ("kv_cache_memory_fraction", 1, 1.0),
        ("scheduling_policy", "priority", "priority"),
        ("long_prefill_token_threshold", "0", 0),
        ("scheduler_cls", "my.Scheduler", "my.Scheduler"),
    ],
)
def test_values_in_range(option: str, value: Any, expected: Any) -> None:
    config = engine_config(**{option: value})
    assert value_of(config, option) == expected
    assert config != EngineConfig() or expected == value_of(EngineConfig(), option)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("model", 5),
        ("model", None),
        ("model", b"smollm2"),
        ("max_num_seqs", 0),
        ("max_num_seqs", -1),
        ("max_num_seqs", "0"),
        ("max_num_seqs", "many"),
        ("max_num_seqs", ""),
        ("max_num_seqs", 8.0),
        ("max_num_seqs", True),
        ("max_num_seqs", None),
        ("max_num_seqs", [1]),
        ("startup_timeout", 0),
        ("startup_timeout", math.nan),
        ("startup_timeout", "soon"),
        ("shutdown_timeout", -0.1),
        ("hang_timeout", 0),
        ("hang_timeout", 1.1e6),
        ("mailbox_bytes", 1 << 15),
        ("mailbox_bytes", 1 << 31),
        ("mailbox_bytes", 100_000),
        ("mailbox_bytes", "1M"),
        ("max_model_len", 0),
        ("seed", -1),
        ("seed", 2**63),
        ("tensor_parallel_size", 2),
        ("tensor_parallel_size", "2"),
        ("dtype", "float16"),
        ("log_level", "INFO"),
        ("debug_actors", "yes"),
        ("debug_actors", 2),
        ("async_scheduling", 2),
        ("async_scheduling", "auto"),
        ("kv_cache_memory_fraction", 0),
        ("kv_cache_memory_fraction", "1.5"),
        ("kv_cache_memory_fraction", math.nan),
        ("kv_cache_memory_fraction", "most"),
        ("scheduling_policy", "lifo"),
        ("long_prefill_token_threshold", -1),
        ("scheduler_cls", ""),
    ],
)
def test_values_out_of_range_are_refused_naming_option_and_value(option: str, value: Any) -> None:
    with pytest.raises(ValueError) as caught:
        engine_config(**{option: value})
    assert str(caught.value).startswith(f"{option} must be ")
    assert str(caught.value).endswith(f"got {value!r}")


def test_an_unknown_option_is_refused_with_a_hint() -> None:
    with pytest.raises(ValueError, match=r"^unknown option max_num_seq; did you mean max_num_seqs\?$"):
        engine_config(max_num_seq=3)
    with pytest.raises(ValueError, match=r"^unknown option zzz; known are api_key, .*, tokenizer$"):
        engine_config(zzz=3)


def test_the_checkpoint_is_no_option() -> None:
    for option in ("checkpoint", "directory", "hf_config", "vocab_size"):
        with pytest.raises(ValueError, match=f"unknown option {option}"):
            engine_config(**{option: "x"})


def test_option_names_are_unique() -> None:
    groups = [group.type for group in msgspec.structs.fields(EngineConfig) if group.type is not Checkpoint]
    names = [field.name for group in groups for field in msgspec.structs.fields(group)]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("server", [False, True])
def test_every_option_is_on_the_command_line_and_described(server: bool) -> None:
    parser = argparse.ArgumentParser()
    add_engine_arguments(parser, server=server)
    actions = {action.dest: action for action in parser._actions if action.dest != "help"}
    assert set(actions) == OPTIONS - {"model"} - (set() if server else {field.name for field in SERVER_FIELDS})
    silent = [name for name, action in actions.items() if not action.help]
    assert not silent
    assert all(name.replace("_", "-") in parser.format_help() for name in actions)


def test_options_come_from_the_command_line_only_where_they_were_given() -> None:
    parser = argparse.ArgumentParser()
    add_engine_arguments(parser)
    parser.add_argument("--something-else", default="x")
    arguments = parser.parse_args(["--max-num-seqs", "8", "--startup-timeout=2.5", "--seed", "7"])
    options = engine_options(arguments)
    assert options == {"max_num_seqs": "8", "startup_timeout": "2.5", "seed": "7"}
    config = engine_config(**options)
    assert (config.scheduler.max_num_seqs, config.runtime.startup_timeout, config.runtime.seed) == (8, 2.5, 7)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {}),
        (["--debug-actors"], {"debug_actors": True}),
        (["--no-debug-actors"], {"debug_actors": False}),
        (["--no-enable-prefix-caching"], {"enable_prefix_caching": False}),
        (["--async-scheduling"], {"async_scheduling": True}),
        (["--no-async-scheduling"], {"async_scheduling": False}),
    ],
)
def test_an_option_that_is_on_or_off_needs_no_value(words: list[str], options: dict[str, bool]) -> None:
    parser = argparse.ArgumentParser()
    add_engine_arguments(parser)
    parser.add_argument("model")
    found = engine_options(parser.parse_args([*words, "smollm2"]))
    assert found == {"model": "smollm2", **options}
    config = engine_config(**found)
    for name in ("debug_actors", "enable_prefix_caching", "async_scheduling"):
        assert value_of(config, name) is options.get(name, value_of(EngineConfig(), name))


def test_help_says_what_an_option_takes() -> None:
    parser = argparse.ArgumentParser()
    add_engine_arguments(parser)
    helps = {action.dest: action.help or "" for action in parser._actions}
    assert "None" not in "".join(helps.values()).replace("quantization", "")
    for option, text in (
        ("async_scheduling", "(default: off) (true or false)"),
        ("enable_prefix_caching", "(true or false; default True)"),
        ("kv_cache_memory_fraction", "(a number above 0, at most 1)"),
        ("scheduling_policy", "(fcfs or priority; default fcfs)"),
        ("long_prefill_token_threshold", "(an integer of at least 0; default 0)"),
        ("scheduler_cls", "(text; default ringpost.sched.scheduler.Scheduler)"),
    ):
        assert helps[option].endswith(text)


def test_a_model_that_is_not_there_is_a_value_error_naming_it(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(ValueError, match="missing"):
        resolve_config(engine_config(model=missing))
