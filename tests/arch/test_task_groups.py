"""Every task belongs to a task group that ends with a block, or to a TaskHost."""

import ast
from collections.abc import Iterator
from textwrap import dedent

import pytest
from source_tree import ROOT, modules

MAKERS = {"create_task", "ensure_future", "gather", "run_coroutine_threadsafe", "Task"}
TASK_HOST = ("actors.base", "TaskHost")
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def is_task_group(call: ast.expr) -> bool:
    return isinstance(call, ast.Call) and ast.unparse(call.func) in {"asyncio.TaskGroup", "TaskGroup"}


def groups_of(block: ast.AsyncWith) -> set[str]:
    """The names that a block binds to task groups."""
    return {
        item.optional_vars.id
        for item in block.items
        if is_task_group(item.context_expr) and isinstance(item.optional_vars, ast.Name)
    }


def makes_a_task(node: ast.AST) -> bool:
    """Whether it names one of the ways to make a task, as a call or handed on; `tensor.gather` and the like are none."""
    if isinstance(node, ast.Name):
        return node.id in MAKERS - {"gather", "Task"}
    if not isinstance(node, ast.Attribute) or node.attr not in MAKERS:
        return False
    return node.attr not in {"gather", "Task"} or ast.unparse(node.value) == "asyncio"


def loose_tasks(node: ast.AST, groups: frozenset[str] = frozenset(), owner: str = "") -> Iterator[tuple[int, str]]:
    """Line and text of what makes a task without a task group whose block it stands in, outside TaskHost."""
    if isinstance(node, SCOPES):
        groups = frozenset()  # it may run after the block around it has ended
        owner = node.name if isinstance(node, ast.ClassDef) else owner
    elif isinstance(node, ast.AsyncWith):
        groups |= groups_of(node)
    elif isinstance(node, ast.ImportFrom) and node.module == "asyncio":
        for alias in node.names:
            if alias.name in MAKERS:
                yield node.lineno, ast.unparse(node)
    if isinstance(node, ast.expr) and makes_a_task(node):
        of_group = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in groups
        if not of_group and owner != TASK_HOST[1]:
            yield node.lineno, ast.unparse(node)
    for child in ast.iter_child_nodes(node):
        yield from loose_tasks(child, groups, owner)


def test_tasks_belong_to_groups() -> None:
    trees = {module.relative: module.tree for module in modules().values()}
    trees |= {f"examples/{path.name}": ast.parse(path.read_text()) for path in (ROOT / "examples").glob("*.py")}
    loose = [f"{place}:{line}: {text}" for place, tree in trees.items() for line, text in loose_tasks(tree)]
    assert not loose, "\n".join(["tasks outside `async with asyncio.TaskGroup() as ...` and TaskHost:", *loose])


def test_only_one_class_is_the_task_host() -> None:
    module, name = TASK_HOST
    homes = [
        found.name
        for found in modules().values()
        for node in ast.walk(found.tree)
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    assert homes == [module]


IN_ORDER = [
    """
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(work())
        async with other(), asyncio.TaskGroup() as more:
            running = [more.create_task(work()), tasks.create_task(work())]
    """,
    """
    class TaskHost:
        def __init__(self):
            asyncio.get_running_loop().create_task(work())
    """,
    "tensor.gather(1, index)",
]
LOOSE = [
    "asyncio.create_task(work())",
    "asyncio.ensure_future(work())",
    "await asyncio.gather(one(), two())",
    "loop.create_task(work())",
    "asyncio.Task(work())",
    "from asyncio import gather",
    "start = loop.create_task",
    """
    async with asyncio.TaskGroup() as tasks:
        pass
    tasks.create_task(work())
    """,
    """
    async with asyncio.TaskGroup() as tasks:
        def later():
            tasks.create_task(work())
    """,
    """
    async with other() as tasks:
        tasks.create_task(work())
    """,
]


@pytest.mark.parametrize("text", IN_ORDER)
def test_tasks_in_order_are_let_pass(text: str) -> None:
    assert list(loose_tasks(ast.parse(dedent(text)))) == []


@pytest.mark.parametrize("text", LOOSE)
def test_loose_tasks_are_found(text: str) -> None:
    assert len(list(loose_tasks(ast.parse(dedent(text))))) == 1
