from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dualpath.cluster.checks import (
    bottleneck_line,
    check_home,
    check_ports,
    check_settings,
    memory_note,
)
from dualpath.cluster.home import Home
from dualpath.cluster.record import load_record
from dualpath.settings import Settings


def test_rdma_without_its_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualpath.cluster.checks.find_spec", lambda name: None)
    (problem,) = check_settings(Settings(transport="rdma"))
    assert "pip install 'dualpath[rdma]'" in problem


def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (problem,) = check_ports(Settings(port=port))
    assert f"port {port} on 127.0.0.1 is in use" in problem
    assert "--port 0" in problem


def test_any_free_port_is_always_free() -> None:
    assert not list(check_ports(Settings(port=0, gateways=3)))


def test_a_host_of_another_machine_is_told() -> None:
    (problem,) = check_ports(Settings(host="192.0.2.1", port=18_000))
    assert "set an address of this machine" in problem
    (problem,) = check_ports(Settings(host="192.0.2.1", port=0))
    assert "set an address of this machine" in problem


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_wildcard_cannot_be_announced(host: str) -> None:
    (problem,) = check_settings(Settings(host=host))
    assert "no address that processes can announce" in problem


def test_shards_started_by_hand_are_not_for_up() -> None:
    (problem,) = check_settings(Settings(shard_addresses=("storage-0=127.0.0.1:1",)))
    assert "starts its own shards" in problem


def test_a_home_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (problem,) = check_home(Home(tmp_path / "file"))
    assert "choose another --home" in problem
    assert not list(check_home(Home(tmp_path / "new" / "home")))


@pytest.mark.parametrize("name", ["lock", "cluster.json", "settings.json", "nats.conf"])
def test_a_directory_in_a_files_place_is_told(tmp_path: Path, name: str) -> None:
    home = Home(tmp_path)
    (home.run / name).mkdir(parents=True)
    (problem,) = check_home(home)
    assert problem == f"{home.run / name} is a directory, but a file belongs there; remove it"
    assert load_record(home) is None


def test_a_home_that_may_not_be_written_is_told() -> None:
    (problem,) = check_home(Home(Path("/proc/dualpath")))
    assert "home /proc/dualpath cannot be written" in problem


def test_the_bottleneck_check_is_the_papers() -> None:
    paper = Settings(
        prefill=2, decode=4, engines=8, snic_bandwidth="400Gbps", cnic_bandwidth="400Gbps"
    )
    line = bottleneck_line(paper)
    assert line is not None
    assert "inside the bottleneck-free range 0.143 ≤ P/D ≤ 3.5" in line
    outside = bottleneck_line(paper.model_copy(update={"prefill": 16, "decode": 1}))
    assert outside is not None
    assert "outside" in outside
    assert bottleneck_line(Settings()) is None, "NICs that are not paced limit no shape"


def test_too_little_memory_is_worth_a_note(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    1048576 kB\n")
    note = memory_note(Settings(), meminfo)
    assert note is not None
    assert "4.0 GiB in total, and 1.0 GiB are available" in note
    small = Settings(
        prefill_buffer="64MiB", decode_buffer="64MiB", prefill_hbm="64MiB", decode_hbm="64MiB"
    )
    assert memory_note(small, meminfo) is None
    assert memory_note(Settings(), tmp_path / "none") is None


def test_a_home_on_a_full_disk_is_said_in_a_sentence(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    # The kernel's file that is always full.
    (home.run / ".writable").symlink_to("/dev/full")
    (problem,) = check_home(home)
    assert "No space left" in problem
    assert "free some room there" in problem
    assert not list(check_home(home)), "what was tried is gone"
