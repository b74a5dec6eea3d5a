"""What the handlers of one application share."""

import time
from dataclasses import dataclass, field

from aiohttp import web

from ...ipc.messages.config import ApiConfig
from ..frontend.engine_client import EngineClient
from .errors import ApiError
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

    def model_name(self, asked: str | None) -> str:
        """The name to answer by. Raises ApiError for a model that is not served."""
        if asked is None or asked in self.model_names:
            return asked or self.model_names[0]
        served = ", ".join(self.model_names)
        raise ApiError(
            404, f"model {asked!r:.100} is not served here; there is {served}", param="model", code="model_not_found"
        )


STATE = web.AppKey("ringpost", ApiState)
