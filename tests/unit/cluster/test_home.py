from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dualpath.cluster.home import Home, HomeBusy, write_private


def test_a_home_serves_one_cluster_at_a_time(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with home.locked(), pytest.raises(HomeBusy, match=f"supervisor pid {os.getpid()}"):  # noqa: SIM117
        with home.locked():
            raise AssertionError("locked twice")
    with home.locked():
        assert home.run.is_dir()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    home = Home(tmp_path)
    code = (
        "import sys, signal, pathlib\nfrom dualpath.cluster.home import Home\n"
        "with Home(pathlib.Path(sys.argv[1])).locked():\n print('locked', flush=True)\n signal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(HomeBusy):  # noqa: SIM117
            with home.locked():
                raise AssertionError("locked twice")
        holder.kill()
        holder.wait()
    with home.locked():
        assert home.run.is_dir()


def test_secrets_are_for_the_owner_only(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    write_private(home.settings_file, b"secret")
    write_private(home.settings_file, b"another")
    assert home.settings_file.read_bytes() == b"another"
    assert stat.S_IMODE(home.settings_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.run.stat().st_mode) == 0o700
    assert [file.name for file in home.run.iterdir()] == ["settings.json"]
