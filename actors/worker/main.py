"""Body of the worker process: a worker over the model runner, which brings torch along."""

from ...model_runner.runner import ModelRunner
from ..boot import Boot, Control
from .actor import serve
from .progress import LoadingBar


async def main(boot: Boot, control: Control) -> None:
    """Load the model, then serve."""

    def load(rank: int) -> ModelRunner:
        with LoadingBar(boot.terminal) as bar:
            return ModelRunner(config=boot.config, rank=rank, on_progress=bar)

    await serve(boot, control, load)
