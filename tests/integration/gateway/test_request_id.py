"""The id by which a client, the logs and the cluster know a request."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.integration.gateway.cluster import FakeCluster, answering
from tests.integration.gateway.conftest import Harness

from dualpath.wire import control

HI: dict[str, Any] = {"model": "synthetic", "messages": [{"role": "user", "content": "Hi"}]}
CHAT = "/v1/chat/completions"
MADE = re.compile(r"[0-9a-f]{24}")


async def ask(harness: Harness, given: str | None, **fields: Any) -> tuple[str, Any]:
    headers = {} if given is None else {"X-Request-Id": given}
    response = await harness.http.post(CHAT, json=HI | fields, headers=headers)
    return response.headers["x-request-id"], response


async def test_a_client_s_id_is_kept_in_the_answer_and_in_the_cluster(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same one twice, as of a client that tries again: two requests all the same."""
    harness.cluster.script = answering("ok")
    given = "trace/1-a:b=c@d+e_f.g"
    for _ in range(2):
        shown, response = await ask(harness, given)
        assert (shown, response.status_code) == (given, 200)
    shown, response = await ask(harness, given, stream=True, n=2)
    assert (shown, response.status_code) == (given, 200)
    names = [submit.attempt.request_id for submit in harness.cluster.submits]
    assert len(set(names)) == 4
    assert all(name.startswith(f"{given}~") for name in names)
    ids = response.text.partition('"id":"')[2].partition('"')[0]
    assert MADE.fullmatch(ids.removeprefix("chatcmpl-"))
    assert f"{given}~{ids.removeprefix('chatcmpl-')}-1" in names
    assert names[0] in capsys.readouterr().out


@pytest.mark.parametrize("given", [None, "", "a b", "x" * 129, "a~b", "<a>", "a\u00e9"])
async def test_an_id_is_made_where_none_can_be_taken(harness: Harness, given: str | None) -> None:
    harness.cluster.script = answering("ok")
    header = {} if given is None else {b"X-Request-Id": given.encode()}
    response = await harness.http.post(CHAT, json=HI, headers=header)
    shown = response.headers["x-request-id"]
    assert MADE.fullmatch(shown)
    assert response.json()["id"] == f"chatcmpl-{shown}"
    (submit,) = harness.cluster.submits
    assert submit.attempt.request_id == shown


async def test_errors_have_it_as_well(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.lose(submit, code="internal", retry=False)

    harness.cluster.script = script
    shown, response = await ask(harness, "mine", temperature=7)
    assert (shown, response.status_code) == ("mine", 400)
    shown, response = await ask(harness, "given-up")
    assert (shown, response.status_code) == ("given-up", 500)
    assert "request given-up~" in response.json()["error"]["message"]
    assert (await harness.http.get("/nowhere")).headers["x-request-id"]

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(harness.gateway._admission, "take", fail)
    shown, response = await ask(harness, "broken")
    assert (shown, response.status_code) == ("broken", 500)
    assert "request broken" in response.json()["error"]["message"]
    log = capsys.readouterr().out
    refused = [line for line in log.splitlines() if "request refused" in line]
    assert any("request_id=mine" in line for line in refused)
    assert any(
        "request failed" in line and "request_id=broken" in line for line in log.splitlines()
    )
