"""What a client sees when something goes wrong: status, error object, headers."""

import asyncio
from typing import Any

import pytest
from api_client import CHAT, COMPLETIONS
from scripted_engine import End, ScriptedEngine
from served_app import AppClient, served

from ringpost.actors.api.app import gate_of
from ringpost.actors.errors import (
    EngineDeadError,
    EngineError,
    EngineGenerateError,
    EngineHungError,
    EngineRecoveringError,
    EngineStartError,
)
from ringpost.ipc.messages.errors import ParameterError

BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hi"},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
}
INVALID, OURS, BUSY = "invalid_request_error", "server_error", "service_unavailable_error"


@pytest.fixture
def engine(tiny: str) -> ScriptedEngine:
    return ScriptedEngine(tiny, max_model_len=64)


TABLE: list[tuple[Exception, int, str, str | None, str | None]] = [
    (ParameterError("top_p is wrong", "top_p", "some_code"), 400, INVALID, "top_p", "some_code"),
    (EngineDeadError("worker0.0 died"), 503, BUSY, None, "engine_dead"),
    (EngineRecoveringError("worker0.0 is replaced"), 503, BUSY, None, "engine_recovering"),
    (EngineHungError("worker0.0 holds a plan"), 503, BUSY, None, "engine_hung"),
    (EngineStartError("worker0.0 cannot start"), 503, BUSY, None, "engine_not_ready"),
    (EngineGenerateError("core0: no room"), 500, OURS, None, None),
    (EngineError("other"), 500, OURS, None, None),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("fault", "status", "kind", "param", "code"), TABLE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("moment", ["when it is added", "later"])
async def test_each_exception_has_its_status(
    api: AppClient,
    engine: ScriptedEngine,
    caplog: pytest.LogCaptureFixture,
    moment: str,
    fault: Exception,
    status: int,
    kind: str,
    param: str | None,
    code: str | None,
) -> None:
    if moment == "later":
        engine.answers[None] = ["a", fault]
    else:
        engine.refusal = fault
    for path, body in BODIES.items():
        reply = await api.call(path, body)
        assert reply.status == status
        assert reply.error == {"message": str(fault), "type": kind, "param": param, "code": code}
        assert reply.headers.get("Retry-After") == ("1" if status == 503 else None)
    assert engine.num_unfinished_requests == 0
    assert not caplog.records


@pytest.mark.asyncio
@pytest.mark.parametrize("moment", ["when it is added", "later"])
@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
async def test_an_unexpected_exception_is_logged_and_stays_here(
    api: AppClient, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture, moment: str, kind: type[Exception]
) -> None:
    """A ValueError that names no parameter is none of the client's."""
    fault = kind("/secret/path")
    if moment == "later":
        engine.answers[None] = [fault]
    else:
        engine.refusal = fault
    for path, body in BODIES.items():
        reply = await api.call(path, body)
        assert reply.status == 500
        assert reply.error["type"] == OURS
        assert b"secret" not in reply.body
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert caplog.text.count(f"{kind.__name__}: /secret/path") == 2


@pytest.mark.asyncio
async def test_too_long_a_prompt_has_a_code(api: AppClient) -> None:
    for path, body in ((COMPLETIONS, {"prompt": "a" * 64}), (CHAT, {"messages": [{"role": "user", "content": "a" * 64}]})):
        error = await api.refused(path, body)
        assert error["code"] == "context_length_exceeded"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", COMPLETIONS, "POST"),
        ("PUT", CHAT, "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/health", "GET, HEAD"),
    ],
)
async def test_a_wrong_method(api: AppClient, method: str, path: str, allow: str) -> None:
    reply = await api.call(path, method=method)
    assert reply.status == 405
    assert reply.headers["Allow"] == allow
    assert reply.error["type"] == INVALID


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/", "/v1", "/v1/completions/", "/v1/embeddings", "/nope", "/%00", "/v1/models/"])
async def test_a_wrong_path(api: AppClient, path: str) -> None:
    for method in ("GET", "POST"):
        reply = await api.call(path, method=method)
        assert reply.status == 404
        assert reply.error["type"] == INVALID


@pytest.mark.asyncio
async def test_paths_that_do_not_exist_have_one_line_in_the_metrics(api: AppClient) -> None:
    for number in range(5):
        await api.get(f"/nope/{number}")
    metrics = await api.metrics()
    assert metrics.value("ringpost:http_requests_total", handler="unknown", status="404") == 5
    assert metrics.value("ringpost:http_requests_total", handler="/nope/1") != 1


@pytest.mark.asyncio
async def test_the_names_of_the_model(api: AppClient) -> None:
    listed = (await api.get("/v1/models")).json
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["m", "alias"]
    assert {card["max_model_len"] for card in listed["data"]} == {64}
    assert (await api.get("/v1/models/alias")).json == listed["data"][1]
    for asked, answered in ((None, "m"), ("m", "m"), ("alias", "alias")):
        assert (await api.call(COMPLETIONS, {"prompt": "hi", "model": asked})).json["model"] == answered


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["other", "other/name", "", "x" * 10_000, "\n"])
async def test_a_model_that_is_not_served(api: AppClient, name: str) -> None:
    reply = await api.call(COMPLETIONS, {"prompt": "hi", "model": name})
    assert reply.status == 404
    assert reply.error["code"] == "model_not_found"
    assert reply.error["param"] == "model"
    assert "m, alias" in reply.error["message"]
    assert len(reply.body) < 1000


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["other", "other/name", "%FF", "%20"])
async def test_a_model_that_is_not_served_in_a_path(api: AppClient, name: str) -> None:
    reply = await api.get(f"/v1/models/{name}")
    assert reply.status == 404
    assert reply.error["code"] == "model_not_found"


@pytest.mark.asyncio
async def test_as_many_requests_as_may_wait(tiny: str) -> None:
    engine = ScriptedEngine(tiny, max_num_seqs=1)
    engine.answers[None] = ["a"]
    async with served(engine, max_num_queued_reqs=1) as api, asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(api.call(path, body)) for path, body in BODIES.items()]
        await engine.nth_request(1)
        for path, body in BODIES.items():
            reply = await api.call(path, body)
            assert reply.status == 503
            assert (reply.error["type"], reply.error["code"]) == (BUSY, "overloaded")
            assert reply.headers["Retry-After"] == "1"
            assert "2 requests" in reply.error["message"]
        assert engine.chats == 1, "a chat that finds no room was rendered"
        assert (await api.get("/health")).status == 200
        engine.requests[0].say(End())
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        engine.answers[None] = [End("b")]
        assert (await api.call(COMPLETIONS, {"prompt": "hi"})).status == 200
        engine.requests[1].say(End())
    assert [task.result().status for task in waiting] == [200, 200]


@pytest.mark.asyncio
async def test_a_call_of_many_prompts_needs_room_for_all(tiny: str) -> None:
    engine = ScriptedEngine(tiny, max_num_seqs=2)
    engine.answers[None] = ["a"]
    async with served(engine, max_num_queued_reqs=1) as api, asyncio.TaskGroup() as tasks:
        error = await api.refused(COMPLETIONS, {"prompt": ["hi"] * 4})
        assert error["param"] == "prompt"
        assert "4" in error["message"]
        assert "3" in error["message"]
        first = tasks.create_task(api.call(COMPLETIONS, {"prompt": "hi"}))
        await engine.nth_request(0)
        assert (await api.call(COMPLETIONS, {"prompt": ["hi"] * 3})).error["code"] == "overloaded"
        assert engine.num_unfinished_requests == 1
        engine.requests[0].say(End())
    assert first.result().status == 200


@pytest.mark.asyncio
async def test_a_closed_gate_lets_nothing_new_in(api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = ["a"]
    gate = gate_of(api.app)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(api.call(COMPLETIONS, {"prompt": "hi"}))
        request = await engine.nth_request(0)
        gate.close()
        for path, body in BODIES.items():
            reply = await api.call(path, body)
            assert reply.status == 503
            assert (reply.error["type"], reply.error["code"]) == (BUSY, "shutting_down")
            assert reply.headers["Retry-After"] == "1"
        assert (await api.get("/health")).status == 503
        assert (await api.get("/v1/models")).status == 200
        assert gate.inside == 1
        emptied = tasks.create_task(gate.wait_empty())
        request.say(End("b"))
    assert running.result().json["choices"][0]["text"] == "ab"
    assert emptied.done()
    assert gate.inside == 0


@pytest.mark.asyncio
async def test_more_choices_than_there_is_room_for(tiny: str) -> None:
    """It is the prompts that are too many where there are several, else the choices."""
    engine = ScriptedEngine(tiny, max_num_seqs=2)
    async with served(engine, max_num_queued_reqs=1) as api:
        for path, body in BODIES.items():
            error = await api.refused(path, body | {"n": 4})
            assert error["param"] == "n"
            assert error["message"] == "n asks for 4 answers, but this server takes at most 3 at once"
            assert len((await api.call(path, body | {"n": 3})).json["choices"]) == 3
        assert (await api.refused(COMPLETIONS, {"prompt": ["a", "b"], "n": 2}))["param"] == "prompt"
    assert [request.params.n for request in engine.requests] == [3, 3]


@pytest.mark.asyncio
async def test_health_before_the_engine_has_started(api: AppClient, engine: ScriptedEngine) -> None:
    engine.started = False
    for path in ("/health", "/ping"):
        reply = await api.get(path)
        assert (reply.status, reply.error["type"]) == (503, BUSY)
        assert reply.error["message"] == "the engine has not started yet"
        assert reply.headers["Retry-After"] == "1"
    engine.started = True
    assert (await api.get("/health")).status == 200


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineHungError("worker0.0 (pid 7): holds StepPlan 17 for 300 s"), "engine_hung"),
        (EngineRecoveringError("worker0.0 (pid 7): killed by signal 9; it is being replaced"), "engine_recovering"),
    ],
)
async def test_an_engine_that_is_unwell_says_so_and_gets_its_requests(
    api: AppClient, engine: ScriptedEngine, error: EngineError, code: str
) -> None:
    engine.unwell = error
    for path in ("/health", "/ping"):
        reply = await api.get(path)
        assert (reply.status, reply.error) == (
            503,
            {"message": str(error), "type": BUSY, "param": None, "code": code},
        )
        assert reply.headers["Retry-After"] == "1"
    for path, body in BODIES.items():
        assert (await api.call(path, body)).status == 200
    assert (await api.metrics()).value("ringpost:num_requests_running") == 0
    engine.unwell = None
    assert (await api.get("/health")).status == 200
    engine.unwell = error
    engine.die()
    assert (await api.get("/health")).error["code"] == "engine_dead"


@pytest.mark.asyncio
async def test_a_dead_engine(api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = ["a"]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(api.call(path, body)) for path, body in BODIES.items()]
        await engine.nth_request(1)
        engine.die("worker0.0 (pid 7): killed by signal 9")
    replies = [task.result() for task in running]
    for path, body in BODIES.items():
        replies.append(await api.call(path, body))
        replies.append(await api.call(path, b"not even JSON"))
    replies.append(await api.get("/health"))
    for reply in replies:
        assert reply.status == 503
        assert reply.error["code"] == "engine_dead"
        assert "worker0.0 (pid 7): killed by signal 9" in reply.error["message"]
    assert (await api.get("/metrics")).status == 200


@pytest.mark.asyncio
async def test_an_answer_cut_off_by_the_shutdown_is_no_answer(api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = ["a"]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(api.call(path, body)) for path, body in BODIES.items()]
        await engine.nth_request(1)
        engine.shutdown()
    for task in running:
        assert task.result().status == 503
        assert task.result().error["code"] == "shutting_down"
        assert "before the answer was complete" in task.result().error["message"]


@pytest.mark.asyncio
async def test_an_answer_aborted_from_outside_is_what_there_is(api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = ["a"]
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(api.call(COMPLETIONS, {"prompt": "hi", "request_id": "r"}))
        await engine.spoken(0)
        await engine.abort("r")
    (choice,) = running.result().json["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("a", "abort")
