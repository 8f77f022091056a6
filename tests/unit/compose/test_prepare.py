"""compose/prepare.py: secrets are drawn once, and only their owner reads them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

from tests.support.compose import ROOT

SCRIPT = ROOT / "compose" / "prepare.py"


def prepare(home: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("DUALPATH_")}
    run = home / "run"
    run.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={
            **clean,
            "DUALPATH_CONFIG": str(run / "settings.json"),
            "DUALPATH_HOME": str(home),
            "DUALPATH_MODEL": "synthetic",
            "DUALPATH_NATS_URL": "nats://nats:4222",
            **settings,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def read(home: Path) -> tuple[dict[str, str], str]:
    return (
        json.loads((home / "run" / "settings.json").read_text()),
        (home / "run" / "nats.conf").read_text(),
    )


def test_secrets_are_drawn_once_and_private(tmp_path: Path) -> None:
    done = prepare(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    secrets, nats = first = read(tmp_path)
    assert len(secrets["secret"]) == 64
    assert json.dumps(secrets["nats_password"]) in nats
    for file in (tmp_path / "run").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert secrets["secret"] not in done.stdout + done.stderr
    assert prepare(tmp_path).returncode == 0
    assert read(tmp_path) == first
    assert list((tmp_path / "models").glob("synthetic-*"))


def test_a_password_of_the_environment_reaches_the_server_too(tmp_path: Path) -> None:
    assert prepare(tmp_path, DUALPATH_NATS_PASSWORD="of my own").returncode == 0
    assert '"of my own"' in read(tmp_path)[1]


def test_what_cannot_work_is_said_before_anything_starts(tmp_path: Path) -> None:
    done = prepare(tmp_path, DUALPATH_DECODE_BUFFER="1MiB")
    assert done.returncode == 1
    assert "decode_buffer" in done.stdout
    done = prepare(tmp_path, DUALPATH_MODEL="/no/such/model")
    assert done.returncode == 1
    assert "no model directory at /no/such/model" in done.stdout
