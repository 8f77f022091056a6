from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dualpath.cli import examine
from dualpath.cli.doctor import as_document, doctor, print_findings, well
from dualpath.cli.examine import Finding, examine_cluster
from dualpath.settings import Settings
from dualpath.transport import sockets


def found(tmp_path: Path, **given: Any) -> dict[str, Finding]:
    settings = Settings(**{"home": tmp_path / "home", "port": 0, "model": "tiny", **given})
    return {finding.what: finding for finding in examine_cluster(settings)}


def test_a_cluster_of_the_tiny_model_can_start_and_looking_leaves_nothing(tmp_path: Path) -> None:
    findings = found(tmp_path)
    assert well(findings.values())
    assert findings["NATS"].text.startswith("nats-server at ")
    assert "one request of 4096 tokens" in findings["capacity"].text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("model", ["tiny", "synthetic"])
def test_pools_that_cannot_hold_one_request_are_each_named_with_a_remedy(
    tmp_path: Path, model: str
) -> None:
    settings = Settings(
        model=model, home=tmp_path, port=0, decode_buffer="1MiB", prefill_hbm="64KiB"
    )
    bad = [finding for finding in examine_cluster(settings) if finding.verdict == "bad"]
    assert [finding.what for finding in bad] == ["capacity", "capacity"]
    assert bad[0].text.startswith("decode_buffer is 1048576 bytes")
    assert bad[0].advice.startswith("Raise decode_buffer to ")


def test_a_context_beyond_the_models_is_refused(tmp_path: Path) -> None:
    capacity = found(tmp_path, max_context=5000)["capacity"]
    assert capacity.verdict == "bad"
    assert "Set max_context to at most 4096" in capacity.advice


def test_a_port_in_use_is_told_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports = found(tmp_path, port=server.getsockname()[1])["ports"]
    assert ports.verdict == "bad"
    assert "is in use" in ports.text
    assert "Choose another with --port" in ports.advice


@pytest.mark.parametrize(
    ("limit", "verdict"), [("212992", "note"), ("1048576", "ok"), ("4194304", "ok")]
)
def test_send_buffers_that_the_kernel_cuts_are_worth_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, verdict: str
) -> None:
    (tmp_path / "wmem_max").write_text(limit)
    monkeypatch.setattr(sockets, "_SEND_BUFFER_LIMIT", tmp_path / "wmem_max")
    finding = found(tmp_path)["sockets"]
    assert finding.verdict == verdict
    assert ("the kernel gives 208" in finding.text) == (verdict == "note")


def test_a_directory_without_a_checkpoint_is_bad(tmp_path: Path) -> None:
    assert found(tmp_path, model=str(tmp_path / "none"))["model"].verdict == "bad"
    (tmp_path / "empty").mkdir()
    assert found(tmp_path, model=str(tmp_path / "empty"))["model"].verdict == "bad"


def test_a_nats_server_of_ones_own_is_called(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"nats://127.0.0.1:{server.getsockname()[1]}"
        assert found(tmp_path, nats_url=url)["NATS"].verdict == "ok"
    gone = found(tmp_path, nats_url=url)["NATS"]
    assert gone.verdict == "bad"
    assert "leave nats_url out" in gone.advice


def test_a_home_below_a_file_is_bad(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert found(tmp_path, home=tmp_path / "file" / "home")["home"].verdict == "bad"


def test_shapes_are_held_against_the_range_of_the_paper(tmp_path: Path) -> None:
    rates = {"snic_bandwidth": "50GB/s", "cnic_bandwidth": "50GB/s"}
    assert "not paced" in found(tmp_path)["shape"].text
    inside = found(tmp_path, prefill=2, decode=1, engines=8, **rates)["shape"]
    assert (inside.verdict, inside.advice) == ("ok", "")
    outside = found(tmp_path, prefill=8, decode=1, engines=8, **rates)["shape"]
    assert outside.verdict == "note"
    assert "outside of the bottleneck-free range" in outside.text


def test_shards_that_may_take_more_than_the_disk_has_are_noted(tmp_path: Path) -> None:
    disk = found(tmp_path, store_capacity=1 << 60)["disk"]
    assert disk.verdict == "note"
    assert "Lower store_capacity" in disk.advice


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "version_of", lambda name: None if name == "torch" else "1")
    packages = examine.examine_packages()
    assert packages.verdict == "bad"
    assert packages.text.endswith("are missing: torch")
    assert packages.advice.startswith("pip install torch ")


def test_only_what_no_extra_asks_for_is_required() -> None:
    texts = ["nats-py", "torch>=2; python_version > '3'", "x; extra == 'dev'", "a[b]~=1.0"]
    assert examine.required(texts) == ["nats-py", "torch", "a"]


def test_people_get_marks_and_advice_and_programs_get_json() -> None:
    findings = [
        Finding("one", "ok", "is [well]"),
        Finding("two", "note", "is odd", "Look."),
        Finding("three", "bad", "is not", "Mend it."),
    ]
    stream = io.StringIO()
    print_findings(findings, Console(file=stream, width=80))
    lines = [line.split() for line in stream.getvalue().splitlines()]
    assert lines[:5] == [
        ["✓", "one", "is", "[well]"],
        ["!", "two", "is", "odd"],
        ["→", "Look."],
        ["✗", "three", "is", "not"],
        ["→", "Mend", "it."],
    ]
    assert "One thing is in the way" in stream.getvalue()
    document = json.loads(as_document(findings))
    assert document["well"] is False
    assert document["findings"][2]["advice"] == "Mend it."


def test_the_command_that_starts_it_is_named_and_needs_the_same_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_findings([Finding("one", "ok", "is well")])
    assert capsys.readouterr().out.endswith("can start: dualpath up\n")
    assert doctor(None, {"home": tmp_path, "port": 0, "model": "tiny"}, as_json=False) == 0
    assert capsys.readouterr().out.endswith("can start: dualpath up, with the same options\n")


def test_the_exit_code_tells_missing_things_from_wrong_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"home": tmp_path, "port": 0, "model": "tiny"}
    assert doctor(None, given, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["well"] is True
    assert doctor(None, {**given, "model": str(tmp_path / "none")}, as_json=False) == 1
    assert "✗ model" in capsys.readouterr().out
    assert doctor(None, {**given, "prefill": 0}, as_json=False) == 2
    assert "prefill" in capsys.readouterr().err


def test_the_doctor_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom dualpath.cli.doctor import doctor\n"
        f"doctor(None, {{'home': {str(tmp_path)!r}, 'port': 0}}, as_json=True)\n"
        "print('torch' in sys.modules, 'transformers' in sys.modules, file=sys.stderr)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stderr.splitlines()[-1] == "False False"


@pytest.mark.smollm2
def test_the_shape_of_smollm2_is_that_of_its_file() -> None:
    from gguf import GGUFReader

    from dualpath.model.prepare import smollm2_file

    fields = GGUFReader(str(smollm2_file())).fields

    def value(name: str) -> int:
        return int(fields[f"llama.{name}"].contents())

    shape = examine.SMOLLM2
    assert value("block_count") == shape["num_hidden_layers"]
    assert value("attention.head_count") == shape["num_attention_heads"]
    assert value("attention.head_count_kv") == shape["num_key_value_heads"]
    assert value("embedding_length") == shape["hidden_size"]
    assert value("rope.dimension_count") == shape["head_dim"]
    assert value("context_length") == shape["max_position_embeddings"]
