"""The routes about the server itself: models, health, version, metrics."""

from importlib.metadata import version

import msgspec
from aiohttp import web

from .errors import ServerStopping
from .responses import ModelCard, ModelList
from .state import STATE, ApiState


def _json(content: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")


def _card(state: ApiState, name: str) -> ModelCard:
    checkpoint = state.engine.config.checkpoint
    return ModelCard(id=name, created=state.created, root=checkpoint.directory, max_model_len=checkpoint.max_model_len)


async def list_models(request: web.Request) -> web.Response:
    """The names this server answers to."""
    state = request.app[STATE]
    return _json(ModelList([_card(state, name) for name in state.model_names]))


async def show_model(request: web.Request) -> web.Response:
    """One of them."""
    state = request.app[STATE]
    return _json(_card(state, state.model_name(request.match_info["model"])))


async def health(request: web.Request) -> web.Response:
    """200 while requests are taken; 503 with the reason otherwise."""
    state = request.app[STATE]
    await state.engine.check_health()
    if not state.gate.is_open:
        raise ServerStopping("the server is shutting down")
    return web.Response()


async def show_version(request: web.Request) -> web.Response:
    """The version of Ringpost."""
    return _json({"version": version("ringpost")})


async def metrics(request: web.Request) -> web.Response:
    """Counters in Prometheus' text format."""
    body, content_type = await request.app[STATE].metrics.render()
    return web.Response(body=body, headers={"Content-Type": content_type})
