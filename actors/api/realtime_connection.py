"""One connection of /v1/realtime: a session of the engine, a conversation, and at most one response at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ...ipc.messages.errors import ParameterError
from ...ipc.messages.sampling import SamplingParams
from ..errors import EngineError, SessionTimeout
from ..frontend.outputs import RequestOutput
from ..frontend.session import Session
from ..tasks import first_of
from . import realtime_events as events
from .errors import ApiError, ErrorInfo, ServerStopping, describe_error
from .realtime_context import Context, wanted_tokens
from .realtime_conversation import Conversation, Item, made_item
from .realtime_response import Response, event
from .realtime_settings import ResponseFields, SessionFields
from .realtime_socket import SlowReader, Socket
from .state import ApiState

_NORMAL, _GOING_AWAY, _POLICY, _INTERNAL = 1000, 1001, 1008, 1011  # close codes


class Connection:
    """Answers a client's events until either side ends the connection. Made inside the session's block."""

    def __init__(self, state: ApiState, socket: Socket, session: Session, settings: SessionFields) -> None:
        self._state = state
        self._socket = socket
        self._session = session
        self._context = Context(state.engine, session)
        self._settings = settings
        self._conversation = Conversation(state.config.max_body_bytes)
        self._response: Response | None = None  # under way
        self._idle = asyncio.Event()
        self._idle.set()
        self._handlers: dict[type[events.ClientEvent], Callable[[Any], Awaitable[None]]] = {
            events.SessionUpdate: self._update_session,
            events.ItemCreate: self._create_item,
            events.ItemRetrieve: self._retrieve_item,
            events.ItemDelete: self._delete_item,
            events.ItemTruncate: self._truncate_item,
            events.BufferAppend: self._append_input,
            events.BufferCommit: self._commit_input,
            events.BufferClear: self._clear_input,
            events.ResponseCreate: self._create_response,
            events.ResponseCancel: self._cancel_response,
        }

    async def run(self) -> None:
        """Serve the client until it leaves, is dropped, or the session or the server ends."""
        try:
            await self._socket.send(event("session.created", session=self._shown()))
            await first_of(self._read(), self._answer(), self._wait_stopped())
            await self._socket.close(_NORMAL, "")
        except ConnectionError:
            return  # it has left
        except SlowReader as error:
            await self._socket.close(_POLICY, str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told, and the server goes on
            await self._end(error)

    async def _end(self, error: Exception) -> None:
        """Tell the client why its session is over."""
        info = describe_error(error)[1].error
        try:
            if self._response is not None and self._response.announced.is_set():
                self._response.fail(info)
                await self._close_response(self._response)
            await self._socket.send(_error_event(info))
        except (ConnectionError, SlowReader):
            pass
        orderly = isinstance(error, SessionTimeout) or not self._state.gate.is_open
        await self._socket.close(_GOING_AWAY if orderly else _INTERNAL, info.code or info.type)

    async def _read(self) -> None:
        async for message in self._socket.messages():
            await self._handle(message)

    async def _handle(self, message: str | bytes) -> None:
        """Do what an event asks for; what is wrong with it is an event."""
        event_id = None
        try:
            self._session.touch()  # whatever it is, the client is there
            if isinstance(message, bytes):
                raise events.no_text_frame()
            content = message.encode()
            envelope = events.read_envelope(content)
            event_id = envelope.event_id
            wanted = events.read_event(content, envelope.type)
            await self._handlers[type(wanted)](wanted)
        except (ConnectionError, SlowReader):
            raise
        except Exception as error:  # noqa: BLE001 - no event may end the connection
            if isinstance(error, RecursionError):
                error = ApiError(400, "the event is nested too deeply")
            await self._socket.send(_error_event(describe_error(error)[1].error, event_id))

    async def _wait_stopped(self) -> None:
        """Raise when the server stops, once no response is under way."""
        await self._state.gate.wait_closed()
        await self._idle.wait()
        raise ServerStopping("the server is shutting down")

    def _shown(self) -> dict[str, Any]:
        return {"id": self._session.session_id, **self._settings.shown()}

    async def _update_session(self, given: events.SessionUpdate) -> None:
        given.session.check("session")
        if given.session.mode not in (None, self._settings.mode) and self._conversation.items:
            message = f"session.mode may only be changed before the first item, got {given.session.mode!r}"
            raise ParameterError(message, "session.mode")
        with given.session.named("session"):
            self._state.model_name(given.session.model, "session.model")
            changed = self._settings.with_changes(given.session)
            # Any prompt will do: it is asked now what the parameters would be refused for later.
            await self._state.engine.check_request([0], changed.params(self._state.default_sampling_params))
        self._settings = changed
        await self._socket.send(event("session.updated", session=self._shown()))

    async def _create_item(self, given: events.ItemCreate) -> None:
        item = made_item(given.item)
        self._conversation.add(item, given.previous_item_id)
        await self._tell_item(item)

    async def _tell_item(self, item: Item) -> None:
        told = {"previous_item_id": self._conversation.previous(item), "item": item.shown()}
        await self._socket.send(event("conversation.item.added", **told), event("conversation.item.done", **told))

    async def _retrieve_item(self, given: events.ItemRetrieve) -> None:
        item = self._conversation.item(given.item_id)
        await self._socket.send(event("conversation.item.retrieved", item=item.shown()))

    async def _delete_item(self, given: events.ItemDelete) -> None:
        self._conversation.delete(given.item_id)
        await self._socket.send(event("conversation.item.deleted", item_id=given.item_id))

    async def _truncate_item(self, given: events.ItemTruncate) -> None:
        self._conversation.truncate(given.item_id, given.content_index, given.text_end)
        kept = {"content_index": given.content_index, "text_end": given.text_end}
        await self._socket.send(event("conversation.item.truncated", item_id=given.item_id, **kept))

    async def _append_input(self, given: events.BufferAppend) -> None:
        self._conversation.append_input(given.text)

    async def _commit_input(self, given: events.BufferCommit) -> None:
        item = self._conversation.commit_input()
        previous = self._conversation.previous(item)
        await self._socket.send(event("input_text_buffer.committed", previous_item_id=previous, item_id=item.id))
        await self._tell_item(item)

    async def _clear_input(self, given: events.BufferClear) -> None:
        self._conversation.clear_input()
        await self._socket.send(event("input_text_buffer.cleared"))

    async def _create_response(self, given: events.ResponseCreate) -> None:
        if self._response is not None:
            code = "conversation_already_has_active_response"
            message = f"there may be one response at a time, and {self._response.id} is under way: wait for it, or cancel it"
            raise ParameterError(message, "type", code)
        fields = given.response or ResponseFields()
        fields.check("response")
        if not self._state.gate.is_open:
            raise ServerStopping("the server is shutting down")
        self._state.require_room(1)
        with fields.named("response"), self._session.busy():  # it may take long to render
            settings = self._settings.with_changes(fields)
            params = settings.params(self._state.default_sampling_params)
            wanted = await wanted_tokens(self._state.engine, self._conversation, settings)
            response = Response(settings, fields.metadata, len(wanted))
            await self._begin(response, wanted, params)
        await self._socket.send(*response.opening(self._conversation.previous(response.item)))
        response.announced.set()

    async def _begin(self, response: Response, wanted: list[int], params: SamplingParams) -> None:
        self._conversation.add_answer(response.item)
        self._response = response
        self._idle.clear()
        try:
            await self._context.answer(wanted, params)
        except BaseException:
            self._conversation.drop_answer(response.item)
            self._forget_response(response)
            raise

    async def _cancel_response(self, given: events.ResponseCancel) -> None:
        response = self._response
        if response is None:
            raise ParameterError("there is no response under way to cancel", "type", "response_cancel_not_active")
        if given.response_id not in (None, response.id):
            message = f"response_id must be that of the response under way, {response.id}, got {given.response_id!r:.100}"
            raise ParameterError(message, "response_id")
        self._session.interrupt(keep_chars=len(response.item.texts[0]))
        await response.ended.wait()  # what follows finds the answer as it was kept

    async def _answer(self) -> None:
        """Tell what the session says. It is taken when what was told before has gone out."""
        async for output in self._session:
            response = self._response
            if response is None:
                continue
            await response.announced.wait()
            await self._socket.send(*response.take(output))
            if output.boundary is not None:
                await self._finish(response, output)
        if self._state.engine.errored:
            raise ServerStopping("the server was shut down before the session ended")
        raise EngineError("the session was ended by the server")

    async def _finish(self, response: Response, output: RequestOutput) -> None:
        assert output.boundary is not None
        if self._settings.mode == "text":
            own = await self._context.own_tokens(response.item.texts[0], response.token_ids)
            if self._conversation.items[0] is not response.item:  # it lacks the tokens that begin a sequence
                response.item.token_ids = own
        response.finish(output.boundary.finish_reason)
        await self._close_response(response)

    async def _close_response(self, response: Response) -> None:
        self._conversation.answered(response.item)
        *first, last = response.closing(self._conversation.previous(response.item))
        await self._socket.send(*first)
        self._forget_response(response)  # whoever has read the last event may ask for the next response
        await self._socket.send(last)

    def _forget_response(self, response: Response) -> None:
        self._response = None
        response.ended.set()
        self._idle.set()


def _error_event(info: ErrorInfo, event_id: str | None = None) -> dict[str, Any]:
    """An error; `event_id` is that of the client's event which it is about."""
    code = info.code
    if code is None and info.type == "invalid_request_error":
        code = "invalid_event" if info.param is None else "invalid_value"
    error = {"type": info.type, "code": code, "message": info.message, "param": info.param, "event_id": event_id}
    return event("error", error=error)
