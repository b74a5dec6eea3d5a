"""A server without a tokenizer, on the demo model: token ids in, token ids out."""

import json
from collections.abc import Iterator

import pytest
from api_client import CHAT, COMPLETIONS, Client, Json
from demo_tokens import DEF, FRANCE, FRANCE_IDS, force, user
from servers import ServerProcess, running_server

PARIS = 7042

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # of the client; the server has its own


@pytest.fixture(scope="module")
def server(smollm2: str) -> Iterator[ServerProcess]:
    with running_server("--skip-tokenizer-init", "--dtype", "float32", "--num-threads", "1") as running:
        yield running


async def test_a_completion(client: Client) -> None:
    body = {"prompt": FRANCE_IDS, "max_tokens": 3, "temperature": 0, "return_token_ids": True}
    whole, streamed = await client.both(COMPLETIONS, body)
    assert (whole.first.text, whole.first.token_ids[0], len(whole.first.token_ids)) == ("", PARIS, 3)
    assert streamed.first == whole.first


async def test_what_needs_text_is_refused(client: Client) -> None:
    asked: list[tuple[str, Json]] = [(COMPLETIONS, {"prompt": FRANCE}), (CHAT, {"messages": user("Hi")})]
    for path, body in asked:
        assert "skip_tokenizer_init" in (await client.refused(path, body))["message"]


async def test_an_answer_that_its_request_leaves_no_token(client: Client) -> None:
    """Which shows only when the one token there is has been said."""
    body = {
        "prompt": FRANCE_IDS,
        "max_tokens": 3,
        "allowed_token_ids": [DEF],
        "bad_words_token_ids": [[DEF, DEF]],
        **force(DEF),
    }
    error = await client.refused(COMPLETIONS, body)
    assert (error["param"], "no token is left" in error["message"]) == ("allowed_token_ids", True)
    status, stream = await client.post(COMPLETIONS, body | {"stream": True, "return_token_ids": True})
    said, told, done = stream.removesuffix(b"\n\n").split(b"\n\n")
    assert (status, done) == (200, b"data: [DONE]")
    assert json.loads(said.removeprefix(b"data: "))["choices"][0]["token_ids"] == [DEF]
    assert json.loads(told.removeprefix(b"data: "))["error"] == error
    assert (await client.ask(COMPLETIONS, body | {"max_tokens": 1})).completion_tokens == 1
