"""An answer that its client sends back is the ids that were generated, whatever the tokenizer would make of it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.gateway.cluster import FakeCluster
from tests.integration.gateway.conftest import Harness

from dualpath.blocks import BlockKeys, pack_keys, root_key
from dualpath.model.bytelevel import END_ID, FIRST_WORD_ID
from dualpath.wire import control

WORDS = [FIRST_WORD_ID + number for number in (3, 70, 5, 44)] * 20
"""Generated ids that no text is encoded to."""
EXPLAIN = {"X-DualPath-Explain": "1"}


async def chat(harness: Harness, messages: list[Any], **more: Any) -> tuple[str, dict[str, Any]]:
    """The answer, and what the gateway knew of earlier ones."""
    response = await harness.http.post(
        "/v1/chat/completions",
        json={"model": "synthetic", "messages": messages, **more},
        headers=EXPLAIN,
    )
    assert response.status_code == 200, response.text
    body = response.json()
    return body["choices"][0]["message"]["content"], body["dualpath"]["earlier_answers"]


class Talk:
    """A conversation, and the prompts that reached the cluster."""

    def __init__(self, harness: Harness, generated: list[int]) -> None:
        self.harness, self.generated = harness, generated
        self.prompts: list[list[int]] = []
        self.messages: list[Any] = []
        harness.cluster.script = self.script

    async def script(self, cluster: FakeCluster, submit: control.Submit) -> None:
        self.prompts.append(await cluster.prompt(submit))
        await cluster.say(submit, 0, self.generated, "stop")

    async def turn(self, **more: Any) -> dict[str, Any]:
        self.messages.append({"role": "user", "content": f"turn {len(self.messages)}"})
        answer, known = await chat(self.harness, self.messages, **more)
        self.messages.append({"role": "assistant", "content": answer})
        return known


@pytest.mark.parametrize("more", [{}, {"cache_salt": "mine"}])
async def test_every_turn_begins_with_the_ids_of_the_one_before(
    harness: Harness, more: dict[str, Any]
) -> None:
    talk = Talk(harness, [*WORDS, END_ID])
    for turn in range(4):
        known = await talk.turn(**more)
        assert known == {"known": turn, "unknown": 0, "changed": 0}
    for before, after in zip(talk.prompts, talk.prompts[1:], strict=False):
        sequence = [*before, *WORDS, END_ID]
        assert after[: len(sequence)] == sequence
    # So its blocks have the names under which they were stored.
    keys = BlockKeys(
        root_key(harness.spec.fingerprint, salt=more.get("cache_salt", "")),
        harness.settings.block_tokens,
    )
    keys.extend([*talk.prompts[0], *WORDS])
    assert harness.cluster.submits[1].keys.startswith(pack_keys(keys.keys))


async def test_after_a_stop_string_the_ids_of_what_was_shown_are_kept(harness: Harness) -> None:
    talk = Talk(harness, [*WORDS[:6], *b"STOP", *WORDS[:3]])
    await talk.turn(stop="STOP")
    assert (await talk.turn(stop="STOP"))["known"] == 1
    sequence = [*talk.prompts[0], *WORDS[:6], END_ID]
    assert talk.prompts[1][: len(sequence)] == sequence


async def test_an_edited_answer_is_tokenized_anew_and_the_cause_is_told(harness: Harness) -> None:
    talk = Talk(harness, WORDS)
    await talk.turn()
    talk.messages[-1]["content"] = "No, I said:" + talk.messages[-1]["content"]
    assert await talk.turn() == {"known": 0, "unknown": 0, "changed": 1}
    talk.messages[0]["content"] = "another question"
    assert await talk.turn() == {"known": 0, "unknown": 2, "changed": 0}
    text = (await harness.http.get("/metrics")).text
    for event, count in (("known", 0), ("unknown", 2), ("changed", 1)):
        assert f'dualpath_events_total{{event="answers_{event}"}} {count}.0' in text


async def test_another_tenants_answers_are_not_known(harness: Harness) -> None:
    talk = Talk(harness, WORDS)
    await talk.turn(cache_salt="a")
    assert await talk.turn(cache_salt="b") == {"known": 0, "unknown": 1, "changed": 0}


@pytest.mark.parametrize("gateway_settings", [{"answer_memory": 1000}], indirect=True)
async def test_memory_that_is_full_forgets_and_says_so(harness: Harness) -> None:
    old, new = Talk(harness, WORDS), Talk(harness, WORDS)
    await old.turn()
    new.messages.append({"role": "system", "content": "another chat"})
    await new.turn()
    assert await new.turn() == {"known": 1, "unknown": 0, "changed": 0}
    assert await old.turn() == {"known": 0, "unknown": 1, "changed": 0}
