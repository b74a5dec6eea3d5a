"""A progress bar for prompts, with the tokens of their answers a second, on standard error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_of(prompts: int, tokens: Callable[[], int], *, shown: bool) -> Iterator[Callable[[], None]]:
    """While the body runs, which calls the yielded function for each prompt that is done. `tokens` counts those generated.

    Nothing is shown unless that is wanted and standard error is a terminal.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda: None
        return
    # Imported here because it costs more than an answer or two.
    import rich.console  # noqa: PLC0415
    import rich.progress  # noqa: PLC0415

    before = tokens()

    class Speed(rich.progress.ProgressColumn):
        def render(self, task: rich.progress.Task) -> str:
            return f"{(tokens() - before) / (task.elapsed or 1):.0f} tokens/s"

    columns = (*rich.progress.Progress.get_default_columns(), rich.progress.MofNCompleteColumn(), Speed())
    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(*columns, console=console) as bar:
        task = bar.add_task("prompts", total=prompts)
        yield lambda: bar.advance(task)
