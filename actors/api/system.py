"""The routes about the server itself: models, health, version, metrics."""

from importlib.metadata import version

from aiohttp import web

from ..errors import EngineStartError
from .errors import ApiError, ServerStopping, json_response
from .responses import ModelCard, ModelList, Version
from .state import STATE, ApiState


def _card(state: ApiState, name: str) -> ModelCard:
    checkpoint = state.engine.config.checkpoint
    return ModelCard(id=name, created=state.created, root=checkpoint.directory, max_model_len=checkpoint.max_model_len)


async def list_models(request: web.Request) -> web.Response:
    """The names this server answers to."""
    state = request.app[STATE]
    return json_response(ModelList([_card(state, name) for name in state.model_names]))


async def show_model(request: web.Request) -> web.Response:
    """One of them."""
    state = request.app[STATE]
    return json_response(_card(state, state.model_name(request.match_info["model"])))


async def health(request: web.Request) -> web.Response:
    """200 while requests are taken and answered; 503 with the reason otherwise."""
    state = request.app[STATE]
    await state.engine.check_health()
    if not state.gate.is_open:
        raise ServerStopping("the server is shutting down")
    if not state.engine.is_running:
        raise EngineStartError("the engine has not started yet")
    return web.Response()


async def reset_prefix_cache(request: web.Request) -> web.Response:
    """Empty the prefix cache; with the query `reset_running_requests=true`, running requests are computed again."""
    if not request.app[STATE].config.enable_reset_prefix_cache:
        raise ApiError(404, "POST /reset_prefix_cache is off: start the server with --enable-reset-prefix-cache")
    given = request.query.get("reset_running_requests", "false")
    if given not in ("true", "false"):
        message = f"reset_running_requests must be true or false, got {given!r:.100}"
        raise ApiError(400, message, param="reset_running_requests")
    await request.app[STATE].engine.reset_prefix_cache(reset_running_requests=given == "true")
    return web.Response()


async def show_version(request: web.Request) -> web.Response:
    """The version of Ringpost."""
    return json_response(Version(version("ringpost")))


async def metrics(request: web.Request) -> web.Response:
    """Counters in Prometheus' text format."""
    body, content_type = request.app[STATE].metrics.render()
    return web.Response(body=body, headers={"Content-Type": content_type})
