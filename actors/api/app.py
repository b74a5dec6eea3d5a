"""The application: routes and what surrounds every request."""

import hmac
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from ...ipc.messages.config import ApiConfig
from ..frontend.engine_client import EngineClient
from .calls import REQUEST_ID, request_id_in
from .chat import chat_completions
from .completions import completions
from .errors import ApiError, error_response
from .gate import Gate
from .metrics import Metrics
from .realtime import UPGRADED, key_among_protocols, realtime
from .state import STATE, ApiState
from .system import health, list_models, metrics, reset_prefix_cache, show_model, show_version

_LEFT = 499  # nginx's status of a client that has left

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(engine: EngineClient, config: ApiConfig | None = None) -> web.Application:
    """OpenAI's API over an engine, as an aiohttp application to run or to mount in another one (`add_subapp`).

    The engine is started and stopped by whoever made it; until it runs, requests wait for its start. `config` defaults to
    the engine's own; host, port and limits on connections are of no meaning here. Run the application with
    `handler_cancellation=True` (AppRunner, run_app): a client that leaves then ends its request at once, else when the
    next token cannot be sent to it, and at the end where nothing is streamed.
    """
    config = engine.config.api if config is None else config
    names = config.served_model_name or (engine.config.model.model,)
    app = web.Application(middlewares=[_observe, _authorize, _admit])
    app[STATE] = ApiState(engine, config, names, Metrics(engine, names[0]))
    app.on_shutdown.append(_refuse_more)
    app.add_routes(
        [
            web.post("/v1/completions", completions),
            web.post("/v1/chat/completions", chat_completions),
            web.get("/v1/realtime", realtime),
            web.get("/v1/models", list_models),
            web.get("/v1/models/{model:.+}", show_model),
            web.post("/reset_prefix_cache", reset_prefix_cache),
            web.get("/health", health),
            web.get("/ping", health),
            web.get("/version", show_version),
            web.get("/metrics", metrics),
        ]
    )
    return app


async def _refuse_more(app: web.Application) -> None:
    gate_of(app).close()


def gate_of(app: web.Application) -> Gate:
    """The gate through which the application's generating requests go; close it to drain."""
    return app[STATE].gate


@web.middleware
async def _observe(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn exceptions into replies, and count."""
    started = time.monotonic()
    status = _LEFT
    try:
        response = await handler(request)
        status = response.status
    except ConnectionError:
        response = web.Response(status=_LEFT, reason="client left")  # nobody reads it
    except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer and the server goes on
        response = error_response(_no_route(request) if isinstance(error, web.HTTPNotFound) else error)
        status = response.status
        if given := request_id_in(request):
            response.headers[REQUEST_ID] = given
    finally:
        if UPGRADED not in request:
            route = request.match_info.route.resource
            name = "unknown" if route is None else route.canonical
            request.app[STATE].metrics.observe_request(request.method, name, status, time.monotonic() - started)
    return response


def _no_route(request: web.Request) -> ApiError:
    return ApiError(404, f"{request.method} {request.path:.100} is no route of this server; OpenAI's are under /v1/")


@web.middleware
async def _authorize(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Ask for the API key, where there is one, on all routes but those that only tell how the server is."""
    key = request.app[STATE].config.api_key
    if key is not None and ("/v1/" in request.path or request.match_info.handler is reset_prefix_cache):
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else key_among_protocols(request)
        if not given or not hmac.compare_digest(given.encode(errors="surrogateescape"), key.encode()):
            raise ApiError(401, "Authorization must be 'Bearer' and this server's API key", code="invalid_api_key")
    return await handler(request)


@web.middleware
async def _admit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Count generating requests as in progress, so that a shutdown can wait for them; none begins on a dead engine."""
    if request.method != "POST":
        return await handler(request)
    state = request.app[STATE]
    with state.gate.entered():
        if state.engine.errored:
            await state.engine.check_health()  # raises; an engine that hangs may go on, so it gets its requests
        return await handler(request)
