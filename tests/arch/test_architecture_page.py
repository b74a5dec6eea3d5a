"""ARCHITECTURE.md is the map of the tree: it names every module, and none that is gone."""

import re

from source_tree import ROOT, modules

ROOMS = "actors|ipc|kernels|model_runner|sched|tests"


def page() -> str:
    return (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_every_module_is_on_the_map() -> None:
    text = page()
    wanted = [module.relative for module in modules().values() if not module.is_package]
    missing = [path for path in wanted if not re.search(rf"(?<![\w/]){re.escape(path)}\b", text)]
    assert not missing, f"ARCHITECTURE.md says nothing about {missing}"


def test_nothing_on_the_map_is_gone() -> None:
    named = set(re.findall(rf"(?<![\w/])(?:{ROOMS})/[\w/]+\.(?:py|c|h)\b", page()))
    gone = sorted(path for path in named if not (ROOT / path).is_file())
    assert not gone, f"ARCHITECTURE.md names files that do not exist: {gone}"
