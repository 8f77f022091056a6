"""The command `llm`, unmodified, from an environment of its own: `LLM=VENV/bin/llm pytest -m slow FILE`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.cluster import LocalCluster

pytestmark = pytest.mark.slow

Llm = Callable[..., str]


@pytest.fixture
def llm(cluster: LocalCluster, tmp_path: Path) -> Llm:
    """Runs it with a configuration of its own; what it printed."""
    command = os.environ.get("LLM") or shutil.which("llm")
    if command is None:
        pytest.skip("no command `llm`: name it in the variable LLM")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: here\n  model_name: {cluster.model}\n  api_base: {cluster.base_url}\n"
        "  supports_schema: true\n"
    )
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "unused"}

    def run(*arguments: str) -> str:
        ended = subprocess.run(
            [command, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


def test_it_prints_the_same_streamed_and_at_once(llm: Llm) -> None:
    ask = ("-m", "here", "Say hello.", "-o", "max_tokens", "12", "-o", "temperature", "0")
    streamed = llm(*ask)
    assert streamed.strip()
    assert llm(*ask, "--no-stream") == streamed


def test_a_conversation_goes_on_with_what_was_said(llm: Llm) -> None:
    options = ("-o", "max_tokens", "8", "-o", "temperature", "0")
    first = llm("-m", "here", "One.", *options)
    llm("-c", "Two.", *options)
    entries = json.loads(llm("logs", "--json"))
    assert [entry["prompt"] for entry in entries] == ["One.", "Two."]
    assert len({entry["conversation_id"] for entry in entries}) == 1
    assert entries[0]["response"].strip() == first.strip()
    assert entries[1]["input_tokens"] > entries[0]["input_tokens"] + 8
    assert [entry["output_tokens"] for entry in entries] == [8, 8]


def test_a_schema_binds_the_answer(llm: Llm) -> None:
    schema = {
        "type": "object",
        "properties": {"size": {"enum": ["small", "large"]}},
        "required": ["size"],
        "additionalProperties": False,
    }
    answer = llm("-m", "here", "How big?", "--schema", json.dumps(schema), "-o", "max_tokens", "60")
    assert json.loads(answer)["size"] in ("small", "large")
