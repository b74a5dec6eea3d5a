"""From the entries of `logits_processors` to classes and instances. Loads no torch of its own accord."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from ..ipc.messages.config import EngineConfig
from ..ipc.messages.import_path import class_at
from ..ipc.messages.sampling import SamplingParams
from .logits_processor import LogitsProcessor

_OPTION = "logits_processors"
_ready: dict[str, LogitsProcessor] = {}  # objects of this process, by the entries that stand for them


@dataclass(frozen=True)
class ProcessorEntry:
    """A class and the arguments to make it with."""

    entry: str  # as configured
    cls: type[LogitsProcessor]
    arguments: dict[str, Any]

    def make(self, config: EngineConfig) -> LogitsProcessor:
        """An instance. Raises ValueError naming the entry if its constructor fails, whatever with."""
        if self.entry in _ready:
            return _ready[self.entry]
        try:
            return self.cls(config, **self.arguments)
        except Exception as error:
            raise ValueError(f"{_OPTION} entry {self.entry!r} cannot be made: {error!r}") from error


def load_processors(entries: Sequence[str]) -> list[ProcessorEntry]:
    """The classes of entries like 'package.module.Class' or 'package.module.Class {"json": "arguments"}', in their order.

    Raises ValueError naming the entry, and what would be right, for a path that leads nowhere, arguments that are no JSON
    object, or a class without the methods of a LogitsProcessor.
    """
    return [_load(entry) for entry in entries]


def validate_params(processors: Sequence[ProcessorEntry], params: SamplingParams) -> None:
    """Let every class look at a request's parameters. Raises the ValueError of the first that cannot work with them."""
    for processor in processors:
        processor.cls.validate_params(params)


@contextmanager
def ready_processors(processors: Sequence[LogitsProcessor]) -> Iterator[tuple[str, ...]]:
    """Entries that stand for these objects, within the block and this process. ValueError for one that is no processor."""
    entries = {f"object {id(processor)}": processor for processor in processors}
    for processor in processors:
        if not isinstance(processor, LogitsProcessor):
            raise ValueError(f"{_OPTION} must be entries or LogitsProcessor objects, got {processor!r:.100}")
    _ready.update(entries)
    try:
        yield tuple(entries)
    finally:
        for entry in entries:
            _ready.pop(entry, None)


def _load(entry: str) -> ProcessorEntry:
    if entry in _ready:
        return ProcessorEntry(entry, type(_ready[entry]), {})
    path, _, text = entry.strip().partition(" ")
    cls = class_at(path, option=_OPTION, noun="logits processor", contract=LogitsProcessor)
    return ProcessorEntry(entry, cls, _arguments(entry, text.strip()))


def _arguments(entry: str, text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if text else {}
    except msgspec.DecodeError as error:
        wanted = """'package.module.Class {"name": "value"}'"""
        raise ValueError(
            f"{_OPTION} entry {entry!r}: what follows the path must be a JSON object, as in {wanted}: {error}"
        ) from error
