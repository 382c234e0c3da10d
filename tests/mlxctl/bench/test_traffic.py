"""Requests against a small server: all at once, a few at a time, in between; and what can fail."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from mlxctl.bench.scenarios import Conversation, Scenario, Turn
from mlxctl.bench.traffic import Sender

END = {"index": 0, "delta": {}, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 5, "completion_tokens": 1}


class Peer(ThreadingHTTPServer):
    """Answers each chat with the words of its last message, each in an event."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []
        self.together = 0
        self.most = 0
        self.lock = threading.Lock()
        self.gate: Callable[[str], None] = lambda said: None
        self.status = 200
        self.whole = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Peer

    def log_message(self, *arguments: Any) -> None: ...

    def do_POST(self) -> None:
        peer = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = body["messages"][-1]["content"]
        with peer.lock:
            peer.bodies.append(body)
            peer.together += 1
            peer.most = max(peer.most, peer.together)
        self.send_response(peer.status)
        self.end_headers()
        if peer.status == 200:
            for word in said.split():
                self.event(choices=[{"index": 0, "delta": {"content": word}}])
                self.wfile.flush()
                peer.gate(said)
            self.event(choices=[END])
            self.event(choices=[], usage=USAGE)
            if peer.whole:
                self.wfile.write(b"data: [DONE]\n\n")
        else:
            self.wfile.write(b"no room")
        with peer.lock:
            peer.together -= 1

    def event(self, **fields: Any) -> None:
        self.wfile.write(f"data: {json.dumps(fields)}\n\n".encode())


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def talk(*texts: str, call: dict[str, Any] | None = None) -> Conversation:
    turns = (Turn(({"role": "user", "content": text},), 4, call) for text in texts)
    return Conversation(tuple(turns))


def test_a_conversation_goes_on_with_what_was_answered(peer: Peer):
    scenario = Scenario("x", (), (talk("a b", "c"),))
    asked, wall = Sender(peer.url, "m", 30).measure(scenario)
    first, second = peer.bodies
    assert first == {
        **{"model": "m", "messages": [{"role": "user", "content": "a b"}], "max_tokens": 4},
        **{"temperature": 0, "stream": True, "stream_options": {"include_usage": True}},
    }
    assert second["messages"][1:] == [
        {"role": "assistant", "content": "ab"},
        {"role": "user", "content": "c"},
    ]
    assert [(one.answer.turn, one.answer.text) for one in asked] == [(0, "ab"), (1, "c")]
    assert [one.answer.error for one in asked] == [None, None]
    assert asked[1].messages == second["messages"]
    assert wall > 0


def test_tokens_may_be_banned_from_answers(peer: Peer):
    Sender(peer.url, "m", 30, banned=(2, 7)).measure(Scenario("x", (), (talk("a", "b"),)))
    assert [body["logit_bias"] for body in peer.bodies] == [{"2": -100, "7": -100}] * 2


def test_no_more_are_under_way_than_are_wanted(peer: Peer):
    scenario = Scenario("x", (), tuple(talk(f"q{n} r") for n in range(6)), at_once=2)
    asked, _ = Sender(peer.url, "m", 30).measure(scenario)
    assert len(asked) == 6
    assert peer.most <= 2


def test_a_late_one_comes_when_all_others_have_begun_and_not_before(peer: Peer):
    late_came, order = threading.Event(), []

    def gate(said: str) -> None:
        order.append(said)
        if said == "late":
            late_came.set()
        else:
            # The short ones do not go on before the late one is there.
            assert late_came.wait(30)

    peer.gate = gate
    scenario = Scenario("x", (), (talk("one 1"), talk("two 2")), at_once=2, late=(talk("late"),))
    asked, _ = Sender(peer.url, "m", 30).measure(scenario)
    assert sorted(order[:2]) == ["one 1", "two 2"]
    assert order[2] == "late"
    assert [one.answer.late for one in asked] == [False, False, True]


def test_a_status_other_than_200_is_told_with_its_words(peer: Peer):
    peer.status = 503
    asked, _ = Sender(peer.url, "m", 30).measure(Scenario("x", (), (talk("a", "b"),)))
    assert [one.answer.error for one in asked] == ["status 503: no room"]


def test_a_stream_that_is_cut_off_is_no_answer(peer: Peer):
    peer.whole = False
    asked, _ = Sender(peer.url, "m", 30).measure(Scenario("x", (), (talk("a"),)))
    assert asked[0].answer.error == "the stream ended before its last event"


def test_a_server_that_hangs_is_given_up(peer: Peer):
    go_on = threading.Event()
    peer.gate = lambda said: go_on.wait(30) and None
    asked, _ = Sender(peer.url, "m", 0.2).measure(Scenario("x", (), (talk("a b"),)))
    go_on.set()
    assert asked[0].answer.error == "no whole answer within 0.2 s"


def test_a_server_that_is_gone_is_told(peer: Peer):
    with socket.socket() as taken:
        # Bound and not listened on: nobody else can answer there.
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        asked, _ = Sender(url, "m", 30).measure(Scenario("x", (), (talk("a"),)))
    assert asked[0].answer.error is not None
    assert asked[0].answer.error.startswith("the connection failed: ")
