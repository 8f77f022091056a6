from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from typer.main import get_command

from dualpath.cli.main import app

HEAVY = (
    "torch", "transformers", "nats", "fastapi", "uvicorn", "pydantic", "tokenizers", "numpy", "httpx",
)  # fmt: skip
ALL = (
    "up",
    "status",
    "top",
    "down",
    "doctor",
    "chat",
    "demo",
    "serve",
    "store",
    "bench",
    "trace",
    "replay",
)


def dualpath(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("DUALPATH_")}
    return subprocess.run(
        [sys.executable, "-m", "dualpath.cli.main", *arguments],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_a_command_it_shows_what_there_is() -> None:
    shown = dualpath()
    text = shown.stdout + shown.stderr
    assert text.startswith("Usage: dualpath")
    for command in ALL:
        assert f"\n  {command} " in text


@pytest.mark.parametrize("command", ALL)
def test_every_command_has_help_in_plain_text(command: str) -> None:
    shown = dualpath(command, "--help")
    assert shown.returncode == 0
    assert "\\b" not in shown.stdout
    assert "\b" not in shown.stdout


def test_help_teaches_with_examples() -> None:
    assert "dualpath up --model tiny" in dualpath("up", "--help").stdout


def test_doctor_takes_the_options_that_say_what_up_would_start() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    up, doctor = ({p.name for p in commands[name].params} for name in ("up", "doctor"))
    assert up - doctor == {"detach", "log_format"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_commands(shell: str) -> None:
    shown = dualpath("--show-completion", shell)
    assert shown.returncode == 0
    assert "_DUALPATH_COMPLETE=complete_" in shown.stdout


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import json, sys\nsys.argv = ['dualpath', '--help']\n"
        "from dualpath.cli.main import main\n"
        "try:\n main()\nfinally:\n print(json.dumps(sorted(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = json.loads(shown.stdout.splitlines()[-1])
    assert not [name for name in HEAVY if name in loaded]


@pytest.mark.parametrize(
    "module", ["dualpath.cluster.supervisor", "dualpath.cli.tables", "dualpath.cli.demo"]
)
def test_the_supervisor_loads_no_torch(module: str) -> None:
    code = f"import sys, {module}\nprint('torch' in sys.modules, 'transformers' in sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout == "False False\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--mode", "basic", "--read-path", "split"), "mode basic reads on the prefill side only"),
        (("--snic-bandwidth", "fast"), "snic_bandwidth: 'fast' is no rate"),
        (("--config", "none.toml"), "no settings file at none.toml"),
        (("--model", "no/such/model"), "no model directory at"),
        (("--model", "synthetic", "--prefill", "0"), "prefill: Input should be"),
    ],
)
def test_what_up_cannot_do_is_said_in_a_sentence_with_exit_code_2(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    ended = dualpath("up", *arguments, DUALPATH_HOME=str(tmp_path), DUALPATH_PORT="0")
    assert ended.returncode == 2
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
    assert all(line.startswith("dualpath: ") for line in ended.stderr.splitlines())
    assert ended.stdout == "", "it is said once"


def test_the_version_is_that_of_the_distribution() -> None:
    assert dualpath("--version").stdout == f"dualpath {metadata.version('dualpath')}\n"


@pytest.mark.parametrize("group", [(), ("bench",), ("store",), ("trace",)])
def test_what_each_command_does_fits_into_its_line(group: tuple[str, ...]) -> None:
    shown = dualpath(*group, "--help", COLUMNS="80")
    _, commands = shown.stdout.split("Commands:\n")
    assert len(commands.splitlines()) > 2
    assert "..." not in commands


def test_without_a_cluster_status_says_so_and_down_is_content(tmp_path: Path) -> None:
    status = dualpath("status", "--home", str(tmp_path))
    assert (status.returncode, status.stdout) == (3, "")
    assert status.stderr.startswith(f"dualpath: no cluster runs on {tmp_path}; `dualpath up`")
    down = dualpath("down", "--home", str(tmp_path))
    assert (down.returncode, down.stdout) == (0, f"no cluster runs on {tmp_path}\n")
    assert not list(tmp_path.iterdir()), "asking leaves nothing behind"


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        (("teapot", "--name", "x"), {}, "'teapot' is no role"),
        (("storage", "--name", "../x"), {"DUALPATH_SECRET": "s"}, "letters, digits"),
        (("storage", "--name", "x"), {}, "secret is not set"),
        (("scheduler", "--name", "x"), {"DUALPATH_SECRET": "s"}, "nats_url is not set"),
        (
            ("gateway", "--name", "x"),
            {"DUALPATH_SECRET": "s", "DUALPATH_NATS_URL": "nats://h:1"},
            "shard_addresses is not set",
        ),
        (
            ("storage", "--name", "x"),
            {"DUALPATH_SECRET": "s", "DUALPATH_SHARD_ADDRESSES": '["here"]'},
            "'here' is no storage shard",
        ),
        (
            ("storage", "--name", "x"),
            {"DUALPATH_SECRET": "s", "DUALPATH_HOST": "0.0.0.0"},
            "set announce to an address or a name",
        ),
    ],
)
def test_serve_says_which_setting_it_lacks(
    arguments: tuple[str, ...], environment: dict[str, str], says: str
) -> None:
    ended = dualpath("serve", *arguments, **environment)
    assert ended.returncode == 2
    assert says in ended.stderr


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_that_cannot_hold_one_longest_request_does_not_start(
    tmp_path: Path, role: str
) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        'model = "synthetic"\nsecret = "s"\nnats_url = "nats://127.0.0.1:1"\n'
        'shard_addresses = ["storage-0=127.0.0.1:2"]\ndecode_buffer = "1MiB"\n'
    )
    arguments = ("serve", role, "--name", "node-0", "--config", str(file))
    shown = dualpath(*arguments, DUALPATH_HOME=str(tmp_path))
    assert shown.returncode == 1
    assert "raise decode_buffer to" in shown.stderr
    assert "Traceback" not in shown.stderr
