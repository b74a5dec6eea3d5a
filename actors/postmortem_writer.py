"""PostmortemWriter: has post-mortems written in the background, where nothing waits for them."""

import asyncio
from pathlib import Path

from ..ipc.messages.config import RuntimeConfig
from .base import TaskHost, run_abandonable
from .logs import logger
from .postmortem_capture import Snapshot

WRITE_SECONDS = 5.0  # after which a disk is given up


class PostmortemWriter:
    """Writes to `postmortem_dir`, or nothing where that is None. Whatever goes wrong is logged, and stops nothing."""

    def __init__(self, config: RuntimeConfig) -> None:
        self._directory = None if config.postmortem_dir is None else Path(config.postmortem_dir)
        self._prompts = config.postmortem_prompts
        self._writing: list[TaskHost] = []

    def write(self, actor: str, snapshot: Snapshot) -> None:
        """Begin to write what was seen of an actor; the log will name the file."""
        if self._directory is not None:
            self._writing.append(TaskHost(self._write(actor, snapshot, self._directory), "post-mortem", self._tidy))

    async def _write(self, actor: str, snapshot: Snapshot, directory: Path) -> None:
        def write() -> Path:
            return snapshot.write(directory, prompts=self._prompts)

        try:
            async with asyncio.timeout(WRITE_SECONDS):
                path = await run_abandonable(write)
        except Exception as error:  # noqa: BLE001 - a lack of memory, of threads or of disk is no reason to end the engine
            logger.error("no post-mortem of %s can be written: %s: %s", actor, type(error).__name__, error)
        else:
            logger.error("the post-mortem of %s is in %s", actor, path)

    def _tidy(self) -> None:
        self._writing = [host for host in self._writing if not host.ended]

    async def finish(self) -> None:
        """Wait until all is written, or given up."""
        for host in list(self._writing):
            await host.wait()
