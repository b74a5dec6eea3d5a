"""Words, paths and calls that have no place in the tree. Patterns are written so that they do not match themselves."""

import ast
import re

import pytest
from source_tree import ROOT, files_of_tests, modules, tracked_files

FORBIDDEN_TEXT = {
    "a note to finish something later": r"\bT[O]DO\b|\bFIX[M]E\b|\bX[X]X\b",
    "a path of one machine": r"(?<![\w.])/(?:wor[k]|roo[t]|User[s]|opt/whee[l]s|opt/pyp[i])\b|(?<![\w.])/hom[e]/\w",
    "a package registry": r"pyp[i]\.org|pythonhosted[.]org|download\.pytorch[.]org|index-ur[l]",
}
BINARY = {".png", ".gguf", ".safetensors", ".bin"}

# Receivers whose create_task belongs to a task group.
TASK_GROUPS = re.compile(r"(?:^|[._])(?:tg|group|tasks)$")

# Files that may make a task outside a group: who ends it.
TASK_MAKERS = {"actors/base.py": "TaskHost is the owner: its stop() cancels the task and waits for it"}

# Files that may sleep: why no event or doorbell would do.
SLEEPERS = {
    "actors/benchmarks/sessions_talk.py": "users interrupt at any moment of a step",
    "actors/frontend/stats_log.py": "a line of numbers every so often",
    "actors/watch.py": "it looks at intervals whether anything happens: nobody announces that nothing does",
    "tests/support/fault_script.py": "an actor that is late is one of the faults",
    "tests/support/mailbox_peer.py": "a slow reader",
    "tests/support/scripted_worker.py": "takes the time for a step that a model would take to compute it",
    "tests/support/stress_peer.py": "pauses at random are what it is for",
}


def dotted(node: ast.expr) -> str:
    """`a.b.c` for a name or a chain of attributes, else what is known of it."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def calls(text: str) -> list[tuple[str, ast.Call]]:
    return [(dotted(node.func), node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("what", sorted(FORBIDDEN_TEXT))
def test_no_file_contains(what: str) -> None:
    pattern = re.compile(FORBIDDEN_TEXT[what])
    names = {*tracked_files(), *(module.relative for module in modules().values())}
    names |= {path.relative_to(ROOT).as_posix() for path in files_of_tests()}
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name in sorted(names)
        if (ROOT / name).suffix not in BINARY and name != "LICENSE"
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join([f"{what}:", *found])


@pytest.mark.parametrize("name", sorted(modules()))
def test_tasks_belong_to_a_group(name: str) -> None:
    module = modules()[name]
    loose = [
        f"{module.relative}:{node.lineno}: {called}"
        for called, node in calls(module.text)
        if called.rpartition(".")[2] in {"create_task", "ensure_future"}
        if called.endswith("ensure_future") or not TASK_GROUPS.search(called.rpartition(".")[0])
    ]
    if module.relative in TASK_MAKERS:
        assert len(loose) == 1, f"{module.relative} should make tasks in one place: {loose}"
        return
    assert not loose, "\n".join(["a task without a task group outlives its owner:", *loose])


def sleeps(text: str) -> list[int]:
    """Lines that sleep. asyncio.sleep(0) only lets others run and is no sleep."""
    return sorted(
        node.lineno
        for called, node in calls(text)
        if called.rpartition(".")[2] == "sleep"
        if not (called == "asyncio.sleep" and [ast.unparse(argument) for argument in node.args] == ["0"])
    )


def test_sleeps_is_right_about_sleeping() -> None:
    assert sleeps("time.sleep(0)\nawait asyncio.sleep(0)\nawait asyncio.sleep(0.1)\nsleep(1)\nawait asyncio.sleep(n)") == [
        1,
        3,
        4,
        5,
    ]


def test_nothing_sleeps() -> None:
    paths = [*(module.path for module in modules().values()), *files_of_tests()]
    places = {path.relative_to(ROOT).as_posix(): sleeps(path.read_text(encoding="utf-8")) for path in paths}
    sleepers = {name: lines for name, lines in places.items() if lines}
    unexplained = {name: lines for name, lines in sleepers.items() if name not in SLEEPERS}
    assert not unexplained, f"wait for an event instead, or add a reason to SLEEPERS: {unexplained}"
    assert not set(SLEEPERS) - set(sleepers), "entries of SLEEPERS that no longer sleep"
