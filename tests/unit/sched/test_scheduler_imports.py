"""The scheduler is pure: importing any of it loads neither torch nor an event loop."""

import subprocess
import sys

PROGRAM = """
import importlib, pkgutil, sys
import ringpost.sched
names = [name for _, name, _ in pkgutil.iter_modules(ringpost.sched.__path__, "ringpost.sched.")]
for name in names:
    importlib.import_module(name)
print(*names)
print(*sorted({"torch", "asyncio", "numpy", "transformers"} & set(sys.modules)))
import sched
print(type(sched.scheduler).__name__)
"""


def test_importing_the_scheduler_loads_no_torch_and_no_asyncio() -> None:
    program = [sys.executable, "-P", "-c", PROGRAM]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    names, loaded, standard = done.stdout.splitlines()
    assert "ringpost.sched.scheduler" in names.split()
    assert "ringpost.sched.integrity" in names.split()
    assert loaded == ""
    assert standard == "type", "`import sched` must be the standard library's"
