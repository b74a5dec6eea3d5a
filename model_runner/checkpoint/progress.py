"""A progress bar on standard error for the slow parts of preparing a model; silent unless that is a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show `description` while the body runs; it calls the yielded function with the units just done, of `total`."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    # Imported here because it costs more than resolving a model that is ready, which shows no bar.
    import rich.console  # noqa: PLC0415
    import rich.progress  # noqa: PLC0415

    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(console=console, transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.advance(task, done)
