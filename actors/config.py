"""From flat options, as users write them, to a checked EngineConfig."""

import argparse
import difflib
import os
from collections.abc import Iterator
from typing import Any

import msgspec

from ..ipc.messages.config import ApiConfig, Checkpoint, EngineConfig, SubConfig
from ..model_runner.checkpoint.cache import cache_root
from ..model_runner.checkpoint.resolve import resolve_checkpoint
from ..model_runner.processor_loading import load_processors


def _groups() -> Iterator[tuple[str, type[SubConfig]]]:
    """The sub-configs that hold options, by their name in EngineConfig."""
    for group in msgspec.structs.fields(EngineConfig):
        if group.type is not Checkpoint:
            yield group.name, group.type


def _options() -> dict[str, tuple[str, msgspec.structs.FieldInfo]]:
    """Every option by its flat name, with the sub-config it belongs to."""
    return {field.name: (name, field) for name, kind in _groups() for field in msgspec.structs.fields(kind)}


def engine_config(**options: Any) -> EngineConfig:
    """An EngineConfig from flat options (`max_num_seqs=32`), named as on vLLM's command line.

    Raises ValueError for an unknown option and for a value of a wrong type or range, naming both.
    """
    known = _options()
    values: dict[str, dict[str, Any]] = {name: {} for name, _ in _groups()}
    for option, value in options.items():
        if option not in known:
            close = difflib.get_close_matches(option, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
            raise ValueError(f"unknown option {option}; {hint}")
        group, field = known[option]
        values[group][option] = _convert(option, value, field.type)
    groups: dict[str, Any] = {name: kind(**values[name]) for name, kind in _groups()}
    return EngineConfig(**groups)


def _convert(option: str, value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, strict=not isinstance(value, str))
    except msgspec.ValidationError:
        raise ValueError(f"{option} must be {_wanted(msgspec.inspect.type_info(kind))}, got {value!r}") from None


def _wanted(info: msgspec.inspect.Type) -> str:
    """In words, what an option takes."""
    match info:
        case msgspec.inspect.Metadata():
            return _wanted(info.type)
        case msgspec.inspect.UnionType():
            return " or ".join(_wanted(part) for part in info.types)
        case msgspec.inspect.LiteralType():
            return " or ".join(map(str, info.values))
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            noun = "an integer" if isinstance(info, msgspec.inspect.IntType) else "a number"
            low = f" of at least {info.ge}" if info.ge is not None else f" above {info.gt}" if info.gt is not None else ""
            high = f", at most {info.le}" if info.le is not None and info.le < 2**31 else ""
            return noun + low + high
        case msgspec.inspect.VarTupleType():
            return f"{_wanted(info.item_type)}; give it again for another"
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.NoneType():
            return "None"
        case _:
            return "text"


def check_config(config: EngineConfig) -> EngineConfig:
    """The same config, checked: a Struct made in Python has not been. Raises ValueError naming the field."""
    if not isinstance(config, EngineConfig):
        raise ValueError(f"config must be an EngineConfig, got {config!r:.100}; for options use AsyncLLM.from_engine_args")
    try:
        return msgspec.convert(msgspec.to_builtins(config), EngineConfig)
    except msgspec.ValidationError as error:
        raise ValueError(f"config: {error}") from None


def add_engine_arguments(parser: argparse.ArgumentParser, *, server: bool = False) -> None:
    """Add every option but the model to a command's parser, as strings; `engine_config` checks them.

    The options of the HTTP server are left out unless the command is one.
    """
    for name, kind in _groups():
        if kind is ApiConfig and not server:
            continue
        group = parser.add_argument_group(name)
        for field in msgspec.structs.fields(kind):
            if field.name != "model":
                flag = "--" + field.name.replace("_", "-")
                kind_of_value: dict[str, Any] = {"metavar": "VALUE"}
                if _is_switch(msgspec.inspect.type_info(field.type)):
                    kind_of_value = {"action": argparse.BooleanOptionalAction}
                elif isinstance(field.default, tuple):
                    # One value each time: with several, an option would swallow the model that follows it.
                    kind_of_value["action"] = "append"
                group.add_argument(flag, default=argparse.SUPPRESS, help=_help(field), **kind_of_value)


def _is_switch(info: msgspec.inspect.Type) -> bool:
    """Whether an option is on or off, or None where that is decided elsewhere."""
    match info:
        case msgspec.inspect.Metadata():
            return _is_switch(info.type)
        case msgspec.inspect.UnionType():
            return any(map(_is_switch, info.types))
        case _:
            return isinstance(info, msgspec.inspect.BoolType)


def _help(field: msgspec.structs.FieldInfo) -> str:
    """The description in a field's Annotated type, what it takes and its default."""
    info = msgspec.inspect.type_info(field.type)
    schema = (info.extra_json_schema if isinstance(info, msgspec.inspect.Metadata) else None) or {}
    default = "" if field.default in (None, ()) else f"; default {field.default}"
    return f"{schema.get('description', '')} ({_wanted(info).removesuffix(' or None')}{default})".replace("%", "%%")


def engine_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The engine's options among a command's arguments."""
    known = _options()
    return {name: value for name, value in vars(arguments).items() if name in known}


def resolve_config(config: EngineConfig) -> EngineConfig:
    """The same config with the checkpoint found, fetched and converted as needed, and the directory for post-mortems named.

    Slow the first time; call it off the loop. Raises ValueError naming what is wrong with the model, or a logits processor.
    """
    load_processors(config.model.logits_processors)  # a wrong entry is told before any process starts
    runtime = msgspec.structs.replace(config.runtime, postmortem_dir=_postmortem_directory(config.runtime.postmortem_dir))
    return msgspec.structs.replace(config, checkpoint=resolve_checkpoint(config.model), runtime=runtime)


def _postmortem_directory(chosen: str | None) -> str | None:
    """As an absolute path. None where there is no cache directory, because this user has no home: no reason not to start."""
    if chosen is not None:
        return os.path.abspath(os.path.expanduser(chosen))
    try:
        return str(cache_root() / "postmortem")
    except RuntimeError:
        return None
