"""Who may import whom. Function-level and TYPE_CHECKING imports count like any other."""

import re
from dataclasses import dataclass

import pytest
from source_tree import Import, Module, imports, module_of, modules

PICKLES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "multiprocessing", "zmq"}

# Modules that may import one of them nevertheless, as (module, what): why.
UNPICKLED = {
    ("actors.process", "multiprocessing"): "the process object alone, with a start method of our own",
    ("actors.benchmarks.driver", "multiprocessing"): "forks the peers of what it measures, which passes them a Queue",
    ("actors.benchmarks.pipe_transport", "multiprocessing"): "what mailboxes are measured against",
    ("actors.benchmarks.queue_transport", "multiprocessing"): "what mailboxes are measured against",
    ("actors.benchmarks.zmq_transport", "zmq"): "what mailboxes are measured against",
}

# Files directly in actors/ that put actors together. They may know an actor's kind; no actor may know them.
COMPOSITION = {
    "bench",
    "bench_engine",
    "chat",
    "chat_backends",
    "cli",
    "complete",
    "engine_finder",
    "engine_look",
    "engine_view",
    "http_service",
    "postmortem",
    "serve",
    "stop_signals",
    "top",
    "top_table",
}


@dataclass(frozen=True)
class Layer:
    """The layers it may import besides itself, and the top-level modules from elsewhere that it must not."""

    may_import: set[str]
    forbidden: set[str]


LAYERS = {
    # layer                      may import                                          must not import
    "ipc.messages": Layer(set(), {"torch", "numpy", "asyncio", "time", "transformers"}),
    "ipc": Layer({"ipc.messages"}, {"torch", "transformers"}),
    "sched": Layer({"ipc.messages"}, {"torch", "transformers", "asyncio", "time", "threading"}),
    "kernels": Layer(set(), {"transformers", "asyncio"}),
    "model_runner.checkpoint": Layer({"ipc.messages"}, {"torch", "transformers", "asyncio", "uvloop", "aiohttp"}),
    "model_runner.memory": Layer(set(), {"torch", "transformers", "asyncio"}),
    "model_runner.phases": Layer(set(), {"torch", "transformers", "asyncio", "numpy"}),  # a clock, also for the core
    # What the edge shares with the worker of custom logits processors; the first names torch for type checkers alone.
    "model_runner.logits_processor": Layer({"ipc.messages"}, {"transformers", "asyncio", "numpy"}),
    "model_runner.processor_loading": Layer(
        {"ipc.messages", "model_runner.logits_processor"}, {"torch", "transformers", "asyncio", "numpy"}
    ),
    "model_runner": Layer(
        {
            "ipc.messages",
            "kernels",
            "model_runner.checkpoint",
            "model_runner.logits_processor",
            "model_runner.memory",
            "model_runner.phases",
            "model_runner.processor_loading",
        },
        {"asyncio", "uvloop", "aiohttp"},
    ),
    "actors": Layer({"ipc", "ipc.messages", "model_runner.memory"}, {"torch", "transformers"}),
    "actors.config": Layer(
        {"actors", "ipc.messages", "model_runner.checkpoint", "model_runner.processor_loading"}, {"torch", "transformers"}
    ),
    "actors.frontend": Layer(
        {
            "actors",
            "actors.config",
            "ipc",
            "ipc.messages",
            "model_runner.logits_processor",
            "model_runner.processor_loading",
        },
        {"torch"},
    ),
    "actors.engine_core": Layer(
        {"actors", "ipc", "ipc.messages", "model_runner.phases", "sched"}, {"torch", "transformers", "tokenizers"}
    ),
    "actors.worker": Layer(
        {"actors", "ipc", "ipc.messages", "model_runner", "model_runner.phases"}, {"transformers", "tokenizers"}
    ),
    "actors.api": Layer({"actors", "actors.frontend", "ipc.messages"}, {"torch", "transformers", "tokenizers"}),
    "actors.benchmarks": Layer({"actors", "ipc", "ipc.messages", "sched"}, {"torch", "transformers", "tokenizers"}),
    "actors.benchmarks.frontend": Layer(
        {"actors", "actors.benchmarks", "actors.config", "actors.frontend", "ipc", "ipc.messages"},
        {"torch", "transformers", "tokenizers"},
    ),
    "actors.benchmarks.frontend_table": Layer(
        {"actors", "actors.benchmarks", "actors.benchmarks.frontend"}, {"torch", "transformers", "tokenizers"}
    ),
    "actors.benchmarks.recovery": Layer(
        {"actors", "actors.benchmarks", "actors.benchmarks.recovery_run", "actors.frontend"},
        {"torch", "transformers", "tokenizers"},
    ),
    "actors.benchmarks.recovery_run": Layer(
        {"actors", "actors.benchmarks", "actors.frontend"}, {"torch", "transformers", "tokenizers"}
    ),
    "actors.benchmarks.perplexity": Layer(
        {"actors", "actors.benchmarks", "actors.frontend", "ipc.messages"}, {"torch", "transformers", "tokenizers"}
    ),
    "actors.benchmarks.perplexity_table": Layer(
        {"actors", "actors.benchmarks", "actors.benchmarks.perplexity"}, {"torch", "transformers", "tokenizers"}
    ),
    **{
        f"actors.benchmarks.{name}": Layer(
            {"actors", "actors.benchmarks", "actors.benchmarks.sessions_idle", "actors.benchmarks.sessions_talk"}
            | {"actors.frontend", "ipc.messages"},
            {"torch", "transformers", "tokenizers"},
        )
        for name in ("sessions", "sessions_idle", "sessions_talk")
    },
    "actors.benchmarks.engine_load": Layer(
        {"actors", "actors.benchmarks", "actors.frontend", "ipc.messages"}, {"torch", "transformers", "tokenizers"}
    ),
    **{
        f"actors.benchmarks.{name}": Layer(
            {"actors.benchmarks", "actors.benchmarks.engine_load"}, {"torch", "transformers", "tokenizers"}
        )
        for name in ("growth", "latency", "throughput")
    },
    "composition": Layer(
        {
            "actors",
            "actors.api",
            "actors.benchmarks",
            "actors.benchmarks.frontend",
            "actors.benchmarks.frontend_table",
            "actors.benchmarks.growth",
            "actors.benchmarks.latency",
            "actors.benchmarks.perplexity",
            "actors.benchmarks.perplexity_table",
            "actors.benchmarks.recovery",
            "actors.benchmarks.sessions",
            "actors.benchmarks.throughput",
            "actors.config",
            "actors.frontend",
            "ipc",
            "ipc.messages",
            "model_runner.checkpoint",
        },
        {"torch", "transformers"},
    ),
    "root": Layer(
        {
            "composition",
            "actors",
            "actors.api",
            "actors.config",
            "actors.frontend",
            "ipc",
            "ipc.messages",
            "model_runner.checkpoint",
            "model_runner.logits_processor",
        },
        {"torch", "transformers"},
    ),
}

# Imports inside functions, as (module, imported package or module): why it has to be late. Entry points need no entry.
LATE = {
    ("actors.frontend.chat_template", "jinja2"): "only a model with a chat template needs it",
    ("actors.frontend.chat_template", "transformers"): "slow to import; only a model with a chat template needs it",
    ("actors.frontend.progress_bar", "rich"): "slow to import; only a program that waits at a terminal shows progress",
    ("actors.frontend.renderer", "transformers"): "slow to import; only who asks for its own tokenizer object needs it",
    ("actors.serve", "ringpost.actors.http_service"): "brings aiohttp along, which loads while the engine's processes start",
    ("model_runner.checkpoint.hub", "huggingface_hub"): "slow to import; only a model from the hub needs it",
    ("model_runner.checkpoint.locate", "ringpost.model_runner.checkpoint.gguf_convert"): "brings numpy and gguf along",
    ("model_runner.checkpoint.progress", "rich"): "slow to import; only a long download or conversion shows progress",
}
ENTRY_POINT = re.compile(r"actors\.\w+\.(?:main|__main__)")

# Modules that import by a computed name: why.
DYNAMIC = {
    "": "loads the public names on first use",
    "actors.benchmarks.transport": "imports only the transport that is measured; what it needs may be absent",
    "actors.cli": "imports only the command that is asked for",
    "actors.task_child": "brings an actor into the caller's process, and torch with the worker, only with single_process",
    "ipc.messages.import_path": "loads the classes that the configuration names",
    "kernels.select": "imports one kernel set only",
}


def layer_of(module: Module) -> str:
    if "." not in module.name and module.name in {"", "__main__"}:
        return "root"
    if module.name.startswith("actors.") and module.name.removeprefix("actors.") in COMPOSITION:
        return "composition"
    name = module.name
    while name and name not in LAYERS:
        name = name.rpartition(".")[0]
    return name


def internal_imports(module: Module) -> list[tuple[Import, Module]]:
    found = [(entry, module_of(entry.target)) for entry in imports(module)]
    return [(entry, target) for entry, target in found if target is not None and target != module]


def runtime_edges(module: Module) -> set[str]:
    """Names of the modules that importing this one runs: for a.b.c also a and a.b, unless they hold this module."""
    edges = set()
    for _, target in internal_imports(module):
        name = target.name
        while name:
            if not (module.name + ".").startswith(name + "."):
                edges.add(name)
            name = name.rpartition(".")[0]
    return edges


def test_every_module_has_a_layer() -> None:
    homeless = [module.relative for module in modules().values() if not layer_of(module)]
    assert not homeless, f"no layer in LAYERS for {homeless}"


def test_every_composition_file_has_a_name_of_its_own() -> None:
    kinds = {name.split(".")[1] for name in LAYERS if name.startswith("actors.")}
    assert not kinds & COMPOSITION


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_point_downwards(name: str) -> None:
    module = modules()[name]
    layer = layer_of(module)
    allowed = LAYERS[layer].may_import | {layer}
    wrong = [
        f"{module.relative}:{entry.line}: {layer} must not import {layer_of(target)} ({target.relative}); "
        f"it may import {', '.join(sorted(allowed))}"
        for entry, target in internal_imports(module)
        if layer_of(target) not in allowed
    ]
    assert not wrong, "\n".join(["", *wrong])


@pytest.mark.parametrize("name", sorted(modules()))
def test_forbidden_modules_stay_out(name: str) -> None:
    module = modules()[name]
    layer = layer_of(module)
    forbidden = LAYERS[layer].forbidden | {what for what in PICKLES if (module.name, what) not in UNPICKLED}
    wrong = [
        f"{module.relative}:{entry.line}: {layer} must not import {entry.target.split('.')[0]}"
        for entry in imports(module)
        if entry.target.split(".")[0] in forbidden
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_exceptions_are_needed() -> None:
    used = {(module.name, entry.target.split(".")[0]) for module in modules().values() for entry in imports(module)}
    assert not set(UNPICKLED) - used, f"these entries of UNPICKLED are out of date: {sorted(set(UNPICKLED) - used)}"


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_inside_the_package_are_relative(name: str) -> None:
    module = modules()[name]
    wrong = re.findall(r"^\s*(?:from|import) ringpost\b.*", module.text, re.MULTILINE)
    assert not wrong, f"{module.relative}: write these relative: {wrong}"


def late_key(module: Module, entry: Import) -> tuple[str, str]:
    target = module_of(entry.target)
    return module.name, f"ringpost.{target.name}" if target else entry.target.split(".")[0]


def test_late_imports_have_a_reason() -> None:
    late = {
        late_key(module, entry): f"{module.relative}:{entry.line}: {entry.target}"
        for module in modules().values()
        if not ENTRY_POINT.fullmatch(module.name)
        for entry in imports(module)
        if entry.late
    }
    unexplained = [place for key, place in late.items() if key not in LATE]
    assert not unexplained, "\n".join(["imports inside functions; move them up or add a reason to LATE:", *unexplained])
    assert not set(LATE) - set(late), f"these entries of LATE are out of date: {sorted(set(LATE) - set(late))}"


def test_computed_imports_have_a_reason() -> None:
    dynamic = {name for name, module in modules().items() if re.search(r"\b(?:import_module|__import__)\(", module.text)}
    assert dynamic == set(DYNAMIC), "imports by a computed name escape the table above: give the reason in DYNAMIC"


def test_no_import_cycles() -> None:
    edges = {name: runtime_edges(module) for name, module in modules().items()}
    reachable = {name: set(targets) for name, targets in edges.items()}
    grown = True
    while grown:
        grown = False
        for seen in reachable.values():
            more = set().union(*(edges[name] for name in seen)) - seen
            seen |= more
            grown |= bool(more)
    knot = sorted(name for name, seen in reachable.items() if name in seen)
    assert not knot, f"these modules import each other in a circle: {knot}"


def test_the_empty_kernels_package_stays_empty() -> None:
    assert modules()["kernels"].text == "", "other libraries probe for a package named kernels: it must hold nothing"
