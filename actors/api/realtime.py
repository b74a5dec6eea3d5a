"""/v1/realtime: a WebSocket that is one session. Here is what comes before the upgrade; what is wrong then is a status."""

import time

from aiohttp import web

from .errors import ApiError
from .realtime_connection import Connection
from .realtime_conversation import new_id
from .realtime_settings import SessionFields, checked_mode
from .realtime_socket import PROTOCOL, Socket
from .state import STATE

UPGRADED = web.RequestKey("upgraded", bool)  # a request that was counted when it became a WebSocket
_PROTOCOLS = "Sec-WebSocket-Protocol"
_KEY = "openai-insecure-api-key."  # before the key, in OpenAI's form for browsers, which cannot set other headers


def key_among_protocols(request: web.Request) -> str:
    """The API key that stands among the subprotocols of a WebSocket; empty where there is none."""
    return next((name.removeprefix(_KEY) for name in _protocols(request) if name.startswith(_KEY)), "")


def _protocols(request: web.Request) -> list[str]:
    return [name.strip() for line in request.headers.getall(_PROTOCOLS, []) for name in line.split(",")]


async def realtime(request: web.Request) -> web.StreamResponse:
    """Serve one session until its end."""
    started = time.monotonic()
    state = request.app[STATE]
    with state.gate.entered():
        if state.engine.errored:
            await state.engine.check_health()
        settings = SessionFields(
            model=state.model_name(request.query.get("model")),
            mode=checked_mode(request.query.get("mode", "chat"), "mode"),
        )
        socket = _socket(request)
        async with await state.engine.open_session(session_id=new_id("sess")) as session:
            await socket.open()
            request[UPGRADED] = True
            state.metrics.observe_request(request.method, "/v1/realtime", 101, time.monotonic() - started)
            with state.metrics.realtime_connection():
                await Connection(state, socket, session, settings).run()
    return socket.response


def _socket(request: web.Request) -> Socket:
    """The request's WebSocket, not yet open. Raises ApiError for a request that is none, or cannot be served."""
    if request.app[STATE].engine.config.model.skip_tokenizer_init:
        raise ApiError(400, "/v1/realtime speaks text, and this server has no tokenizer (--skip-tokenizer-init)")
    offered = _protocols(request)
    if offered and PROTOCOL not in offered:  # aiohttp would log all of them, the key too
        raise ApiError(400, f'{_PROTOCOLS} must name "{PROTOCOL}"', param=_PROTOCOLS)
    socket = Socket(request)
    if not socket.can_open:
        raise ApiError(426, "GET /v1/realtime must ask for a WebSocket: Upgrade, Connection and Sec-WebSocket-* headers")
    return socket
