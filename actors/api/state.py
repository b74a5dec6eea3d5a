"""What the handlers of one application share."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from ...ipc.messages.config import ApiConfig
from ..frontend.engine_client import EngineClient
from .errors import ApiError, Overloaded
from .gate import Gate
from .metrics import Metrics


@dataclass(slots=True)
class ApiState:
    """The engine and the server's own options, names and counters."""

    engine: EngineClient
    config: ApiConfig
    model_names: tuple[str, ...]
    metrics: Metrics
    gate: Gate = field(default_factory=Gate)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def default_sampling_params(self) -> Mapping[str, Any]:
        """The model's own, for what a request leaves out."""
        config = self.engine.config
        no_text = {"detokenize": False} if config.model.skip_tokenizer_init else {}
        return config.checkpoint.default_sampling_params | no_text

    @property
    def room(self) -> int:
        """Answers that may be under way or wait at once."""
        return self.engine.config.scheduler.max_num_seqs + self.config.max_num_queued_reqs

    def require_room(self, count: int) -> None:
        """Raise Overloaded when so many more answers find no room now."""
        live = self.engine.num_unfinished_requests
        if live + count > self.room:
            raise Overloaded(f"{live} requests run and wait already, and this server takes {self.room}; try again later")

    def model_name(self, asked: str | None, field: str = "model") -> str:
        """The name to answer by. Raises ApiError for a model that is not served, which the client has asked for in `field`."""
        if asked is None or asked in self.model_names:
            return asked or self.model_names[0]
        served = ", ".join(self.model_names)
        raise ApiError(
            404, f"{field} {asked!r:.100} is not served here; there is {served}", param=field, code="model_not_found"
        )


STATE = web.AppKey("ringpost", ApiState)
