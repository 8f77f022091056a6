"""Replay against a small server over real sockets: what is sent and when, and the ways in which answers fail."""

from __future__ import annotations

import asyncio
import ssl
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import Authority
from tests.support.openai_server import Asked, OpenAiServer
from tests.support.wait import until

from dualpath.loadgen.replay import (
    ClosedLoop,
    OpenLoop,
    Progress,
    ReplayError,
    ReplayResult,
    StopRules,
    Target,
    pool,
    replay,
)
from dualpath.loadgen.traces import Trace, Trajectory, Turn
from dualpath.loadgen.traces.content import prompt_ids

VOCAB = (300, 30_000)
TRACE = Trace(
    "t",
    tuple(
        Trajectory(name, (Turn(70, 3), Turn(5, 2), Turn(6, 4)), seed=seed)
        for seed, name in enumerate(("a", "b"))
    ),
)
ONE = Trace("one", (Trajectory("a", (Turn(4, 3), Turn(4, 3))),))


async def one(server: OpenAiServer, **target: Any) -> ReplayResult:
    """One agent of two turns, each of three tokens."""
    return await replay(ONE, Target(server.url, **target), ClosedLoop(1))


async def test_prompts_are_exact_and_turns_follow_each_other() -> None:
    async with OpenAiServer() as server:
        shown: list[Progress] = []
        result = await replay(
            TRACE, Target(server.url), ClosedLoop(3), keep_ids=True, on_progress=shown.append
        )
    assert result.errors == {}
    assert (result.ended, result.prompts, result.model) == ("done", "ids", "little")
    agents = TRACE.agents(3)
    assert [agent.answered for agent in result.agents] == [3, 3, 4]
    sent = {tuple(asked.prompt): asked for asked in server.asked}
    for record in result.turns:
        trajectory = agents[record.agent]
        answers = [range(1, turn.generate_tokens + 1) for turn in trajectory.turns]
        prompt = prompt_ids(TRACE, trajectory, record.turn, answers, VOCAB)
        asked = sent.pop(tuple(prompt))
        wanted = trajectory.turns[record.turn].generate_tokens
        assert asked.body["max_tokens"] == asked.body["min_tokens"] == wanted
        assert asked.body["ignore_eos"] is True
        assert record.token_ids == tuple(range(1, wanted + 1))
        assert record.prompt_tokens == len(prompt)
    assert not sent
    for agent in result.agents:
        own = [turn for turn in result.turns if turn.agent == agent.agent]
        assert [turn.turn for turn in own] == list(range(agent.turns))
        for before, after in pairwise(own):
            assert before.due_s <= before.sent_s <= before.end_s == after.due_s
        for turn in own:
            assert turn.first_s is not None
            assert turn.sent_s <= turn.first_s <= turn.end_s
    assert shown[-1].turns == shown[-1].turns_all == 10
    assert (shown[-1].agents_ended, shown[-1].in_flight) == (3, 0)


async def test_connections_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_KEEP_S", 60.0)
    async with OpenAiServer() as server:
        await replay(TRACE, Target(server.url), ClosedLoop(2))
        # Six requests, and two before them.
        assert server.connections < 8


async def test_a_tools_delay_passes_before_the_next_turn() -> None:
    trace = Trace("t", (Trajectory("a", (Turn(4, 1), Turn(4, 1, 0.05))),))
    async with OpenAiServer() as server:
        result = await replay(trace, Target(server.url), ClosedLoop(1))
    first, second = result.turns
    assert second.due_s == pytest.approx(first.end_s + 0.05)
    assert second.sent_s >= second.due_s - 0.002
    assert second.ttft_s == pytest.approx((second.first_s or 0) - second.due_s)


async def test_agents_of_an_open_loop_arrive_when_they_should() -> None:
    trace = Trace(
        "t", tuple(Trajectory(str(i), (Turn(4, 1),), arrival_s=i * 0.02) for i in range(5))
    )
    async with OpenAiServer() as server:
        result = await replay(trace, Target(server.url), OpenLoop())
        poisson = await replay(trace, Target(server.url), OpenLoop(aps=200, agents=9, seed=1))
    assert [agent.due_s for agent in result.agents] == [0.0, 0.02, 0.04, 0.06, 0.08]
    assert all(turn.sent_s >= turn.due_s - 0.002 for turn in result.turns)
    assert [agent.ok for agent in poisson.agents] == [True] * 9


# ── other ways to ask ──────────────────────────────────────────────────────────────────────────────
async def test_a_server_without_token_ids_gets_chats_of_the_right_length() -> None:
    async with OpenAiServer(takes_ids=False) as server:
        result = await replay(TRACE, Target(server.url), ClosedLoop(2))
        with pytest.raises(ReplayError, match="a prompt is text"):
            await replay(TRACE, Target(server.url, prompts="ids"), ClosedLoop(2))
    assert (result.errors, result.prompts) == ({}, "chat")
    third = next(asked for asked in server.asked if len(asked.body["messages"]) == 5)
    assert [m["role"] for m in third.body["messages"]] == [
        "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    assert [len(m["content"].split()) for m in third.body["messages"]] == [70, 3, 5, 2, 6]


async def test_text_grows_by_what_was_answered() -> None:
    async with OpenAiServer() as server:
        result = await one(server, prompts="text")
    first, second = (asked.body["prompt"] for asked in server.asked)
    assert result.errors == {}
    assert second.startswith(f"{first} t1 t2 t3 ")
    assert len(second.split()) == 4 + 3 + 4


async def test_recorded_answers_that_call_tools_go_back_as_they_were() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}
    turns = (
        Turn(3, 2, messages=({"role": "user", "content": "a b"},), answer=call),
        Turn(3, 2, messages=({"role": "tool", "tool_call_id": "c", "content": "d"},)),
        Turn(3, 2, messages=({"role": "user", "content": "e"},)),
    )
    tool = {"type": "function", "function": {"name": "f"}}
    trace = Trace("t", (Trajectory("a", turns, tools=(tool,)),))
    async with OpenAiServer() as server:
        result = await replay(trace, Target(server.url), ClosedLoop(1))
    assert result.errors == {}
    last = server.asked[-1].body
    assert last["tools"] == [tool]
    assert last["messages"][1] == call
    assert last["messages"][3] == {"role": "assistant", "content": " t1 t2"}


async def test_samples_have_seeds_of_their_own_and_keys_are_sent() -> None:
    async with OpenAiServer() as server:
        target = Target(
            server.url, seeded=True, api_key="k-1", explain=True, extra={"temperature": 0.7}
        )
        await replay(TRACE.repeated(2), target, ClosedLoop(4))
    firsts = [asked for asked in server.asked if len(asked.prompt) == 70]
    assert sorted(asked.body["seed"] for asked in firsts) == [0, 1, 2, 3]
    assert len({tuple(asked.prompt) for asked in firsts}) == 2
    for asked in firsts:
        assert asked.body["temperature"] == 0.7
        assert asked.headers["authorization"] == "Bearer k-1"
        assert asked.headers["x-dualpath-explain"] == "1"


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="the authority lacks fields asked for since"
)
async def test_servers_with_certificates_are_reached_where_the_authority_is_trusted(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    async with OpenAiServer(ssl=context) as server:
        url = server.url.replace("http:", "https:")
        result = await replay(ONE, Target(url, ca_file=str(authority.file)), ClosedLoop(1))
        with pytest.raises(ReplayError, match="certificate verify failed"):
            await replay(ONE, Target(url), ClosedLoop(1))
    assert result.errors == {}


# ── failures ───────────────────────────────────────────────────────────────────────────────────────
async def too_short(asked: Asked) -> None:
    await asked.tokens(1, 2, finish="stop")
    await asked.end(2)


async def without_done(asked: Asked) -> None:
    await asked.tokens(1, 2, 3, finish="length")
    await asked.close_stream()


async def without_finish(asked: Asked) -> None:
    await asked.tokens(1, 2, 3)
    await asked.end(3)


async def broken(asked: Asked) -> None:
    await asked.tokens(1)
    asked.writer.transport.abort()


async def silent(asked: Asked) -> None:
    await asked.tokens(1)
    await asyncio.Event().wait()


async def failing(asked: Asked) -> None:
    await asked.tokens(1)
    await asked.event(error={"message": "node lost"})
    await asked.close_stream()


async def nonsense(asked: Asked) -> None:
    await asked.send(b"data: {{{\n\n")


async def no_http(asked: Asked) -> None:
    asked.writer.write(b"hello, who is there?\r\n\r\n")
    await asked.writer.drain()


async def miscounting(asked: Asked) -> None:
    await asked.tokens(1, 2, 3, finish="length")
    asked.body["prompt"].append(0)
    await asked.end(3)


@pytest.mark.parametrize(
    ("respond", "kind", "said"),
    [
        (too_short, "length", "2 tokens were generated instead of 3"),
        (without_done, "incomplete", "without [DONE]"),
        (without_finish, "incomplete", "without finish_reason"),
        (broken, "broken", "within the answer"),
        (failing, "error-event", "node lost"),
        (nonsense, "malformed", "no event"),
        (no_http, "malformed", "no HTTP"),
        (miscounting, "length", "the prompt has 4 tokens, but the server counted 5"),
        (lambda asked: asked.refuse(400, "too long"), "http-400", "too long"),
        (lambda asked: asked.refuse(503, "no node"), "http-503", "no node"),
    ],
)
async def test_a_turn_that_fails_is_counted_and_ends_its_agent(
    respond: Any, kind: str, said: str
) -> None:
    async with OpenAiServer(respond) as server:
        result = await one(server)
    (turn,) = result.turns
    assert (result.errors, result.retries) == ({kind: 1}, {})
    assert said in turn.detail
    assert not result.valid
    assert said in result.warnings[0]
    (agent,) = result.agents
    assert (agent.error, agent.answered) == (kind, 0)


async def test_a_server_that_says_nothing_more_is_a_timeout() -> None:
    async with OpenAiServer(silent) as server:
        result = await one(server, timeout_s=0.2)
        await until(lambda: not server.open, what="the connection is closed")
    assert result.errors == {"timeout": 1}


async def test_other_agents_go_on() -> None:
    async def respond(asked: Asked) -> None:
        await (broken(asked) if asked.number == 1 else asked.whole())

    async with OpenAiServer(respond) as server:
        result = await replay(TRACE, Target(server.url), ClosedLoop(2))
    assert result.errors == {"broken": 1}
    assert sorted(agent.answered for agent in result.agents) == [0, 3]


async def test_refusals_for_now_are_sent_again_and_counted() -> None:
    async def respond(asked: Asked) -> None:
        if asked.number < 2:
            await asked.refuse(429, "full", **{"Retry-After": "0"})
        else:
            await asked.whole()

    async with OpenAiServer(respond) as server:
        result = await one(server, retries=2)
    assert (result.errors, result.retries) == ({}, {"http-429": 2})
    assert [turn.attempts for turn in result.turns] == [3, 1]
    assert "2 requests were sent again: http-429" in result.warnings
    async with OpenAiServer(lambda asked: asked.refuse(429, "full")) as server:
        assert (await one(server)).errors == {"http-429": 1}


async def test_a_kept_connection_that_the_server_closed_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "_KEEP_S", 60.0)

    async def respond(asked: Asked) -> None:
        # The second request comes over the connection of the first.
        if asked.number == 1:
            asked.writer.transport.abort()
        else:
            await asked.whole()

    async with OpenAiServer(respond) as server:
        result = await one(server)
    assert result.errors == {}
    assert result.retries == {"stale-connection": 1}
    assert [turn.attempts for turn in result.turns] == [1, 2]


async def test_answers_may_be_shorter_where_exact_ones_cannot_be_asked_for() -> None:
    async with OpenAiServer(too_short) as server:
        result = await one(server, exact=False)
    assert result.errors == {}
    assert "ignore_eos" not in server.asked[0].body
    assert len(server.asked[1].prompt) == 4 + 2 + 4


async def test_what_cannot_begin_says_why() -> None:
    for target, said in (
        (Target("127.0.0.1:1"), "is no address"),
        (Target("http://[::1/v1"), "is no address"),
        (Target("http://127.0.0.1:1/v1"), "no connection to"),
        (Target("https://127.0.0.1:1/v1", ca_file="/nowhere"), "cannot be read"),
    ):
        with pytest.raises(ReplayError, match=said):
            await replay(ONE, target, ClosedLoop(1))
    with pytest.raises(ReplayError, match="without an end"):
        await replay(ONE, Target("http://127.0.0.1:1/v1"), OpenLoop(aps=1))


# ── ends ───────────────────────────────────────────────────────────────────────────────────────────
async def test_an_interrupted_replay_gives_what_it_found() -> None:
    interrupt = asyncio.Event()

    async def respond(asked: Asked) -> None:
        if asked.number == 4:
            interrupt.set()
            await asyncio.Event().wait()
        await asked.whole()

    async with OpenAiServer(respond) as server:
        result = await replay(TRACE, Target(server.url), ClosedLoop(1), interrupt=interrupt)
        assert result.ended == "done"
        result = await replay(TRACE, Target(server.url), ClosedLoop(1), interrupt=interrupt)
        await until(lambda: not server.open, what="every stream has ended at the server")
    assert result.ended == "interrupted"
    assert [turn.error for turn in result.turns] == ["", "stopped"]
    assert result.agents[0].error == "stopped"
    assert result.errors == {}


async def test_cancelling_a_replay_ends_every_stream_at_the_server() -> None:
    async with OpenAiServer(silent) as server:
        running = asyncio.create_task(replay(TRACE, Target(server.url), ClosedLoop(5)))
        await until(lambda: len(server.asked) == 5, what="all are under way")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: not server.open, what="every stream has ended at the server")


async def test_a_server_that_cannot_keep_up_ends_an_open_loop() -> None:
    rules = StopRules(ttft_s=0.05, window_s=5, min_turns=3)
    async with OpenAiServer(silent_from_the_start) as server:
        result = await replay(
            TRACE, Target(server.url), OpenLoop(aps=100, agents=10_000), stop=rules
        )
    assert result.ended == "overloaded"
    assert result.errors == {}
    assert {turn.error for turn in result.turns} == {"stopped"}


async def silent_from_the_start(asked: Asked) -> None:
    await asyncio.Event().wait()


async def test_a_replay_ends_after_the_seconds_that_it_was_given() -> None:
    for load in (ClosedLoop(2), OpenLoop(aps=20)):
        async with OpenAiServer(silent) as server:
            stop = replace(StopRules(), ttft_s=None, max_s=0.1)
            result = await replay(TRACE, Target(server.url), load, stop=stop)
        assert result.ended == "max_s"
