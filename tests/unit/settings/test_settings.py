from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dualpath.settings import CONFIG_VARIABLE, Settings, dump_settings, load_settings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("DUALPATH_"):
            monkeypatch.delenv(name)


def test_command_line_wins_over_environment_and_environment_over_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('prefill = 2\ndecode = 2\nshards = 5\nsnic_bandwidth = "400Gbps"\n')
    monkeypatch.setenv("DUALPATH_DECODE", "3")
    monkeypatch.setenv("DUALPATH_PREFILL", "3")
    settings = load_settings(file, prefill=4, gateways=None)
    assert (settings.prefill, settings.decode, settings.shards) == (4, 3, 5)
    assert settings.snic_bandwidth == 50_000_000_000


def test_the_file_can_be_named_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text("[synthetic]\nlayers = 3\n")
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    assert load_settings().synthetic.layers == 3


def test_a_nested_setting_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALPATH_SYNTHETIC__LAYERS", "5")
    assert load_settings().synthetic.layers == 5


def test_dumped_settings_load_as_they_were(tmp_path: Path) -> None:
    settings = load_settings(
        None,
        model="synthetic",
        home=tmp_path,
        secret='söme "secret"',
        shard_addresses=("storage-0=127.0.0.1:1", "storage-1=127.0.0.1:2"),
        cnic_bandwidth="1GB/s",
    )
    file = tmp_path / "settings.json"
    file.write_bytes(dump_settings(settings))
    assert load_settings(file) == settings


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mode": "basic", "read_path": "split"}, "reads on the prefill side only"),
        ({"mode": "pe-only", "read_path": "adaptive"}, "use mode dualpath"),
        ({"mode": "basic", "layerwise": True}, "no layerwise prefill"),
        ({"mode": "basic", "placement": "least-tokens"}, "places round robin"),
        ({"mode": "oracle"}, "--model synthetic"),
        ({"nats_user": "me"}, "set nats_url too"),
        ({"tls_certificate": "node.crt", "tls_ca": "ca.crt"}, "set all three, or none"),
        ({"tls": True, "transport": "rdma"}, "leave tls out, or use tcp"),
        ({"lane_dscp": (64, 0)}, "lane_dscp"),
        ({"quantum": "1KiB"}, "quantum: .*4096"),
        ({"transfer_deadline_s": 0.01}, "transfer_deadline_s: .*0.05"),
        ({"store_replicas": 3}, "2 shards cannot keep 3 copies"),
        ({"store_replicas": 2, "shard_addresses": ("s=h:1",)}, "1 shards cannot keep 2 copies"),
        ({"port": 65535, "gateways": 2}, "choose a lower port"),
        ({"prefil": 2}, "did you mean prefill"),
        ({"snic_bandwidth": "5 parsec"}, "write for example 50MB/s"),
    ],
)
def test_a_contradiction_is_an_error_in_a_sentence(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        load_settings(**given)


def test_copies_are_kept_on_as_many_shards_as_have_addresses() -> None:
    addresses = ("storage-0=h:1", "storage-1=h:2", "storage-2=h:3")
    assert load_settings(store_replicas=3, shard_addresses=addresses).store_replicas == 3


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(ValueError) as raised:
        load_settings(prefill=0, mode="fast")
    assert len(str(raised.value).splitlines()) == 2


def test_a_variable_that_is_no_setting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALPATH_PREFIL", "2")
    with pytest.raises(ValueError, match="did you mean DUALPATH_PREFILL"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("none.toml", None, "no settings file at"),
        ("bad.toml", "prefill =", "is not well formed"),
        ("bad.json", "{", "is not well formed"),
        ("list.json", "[]", "holds no table"),
        ("float.toml", "prefill_buffer = 1.5e9", "prefill_buffer: .* write for example 512MiB"),
        ("typo.toml", "[synthetic]\nlayer = 2\n", "did you mean layers"),
    ],
)
def test_a_bad_settings_file_is_told(
    tmp_path: Path, name: str, text: str | None, says: str
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=says):
        load_settings(file)


def test_modes_set_what_is_not_set_by_hand() -> None:
    basic, dual = Settings(mode="basic"), Settings(mode="dualpath")
    assert (basic.use_layerwise, basic.use_read_path, basic.use_placement) == (
        False,
        "prefill",
        "round-robin",
    )
    assert (dual.use_layerwise, dual.use_read_path, dual.use_placement) == (
        True,
        "split",
        "adaptive",
    )
    assert not Settings(layerwise=False).use_layerwise
    assert Settings(model="synthetic", mode="oracle", snic_bandwidth=1).nic_bandwidths == (
        None,
        None,
    )


def test_secrets_are_not_in_the_representation() -> None:
    text = repr(load_settings(nats_url="nats://h:1", nats_password="hidden1", secret="hidden2"))
    assert "hidden" not in text


def test_home_is_absolute() -> None:
    assert load_settings(home="~/cluster").home == Path.home() / "cluster"
    assert load_settings(home="cluster").home == Path.cwd() / "cluster"


_PEM = dict.fromkeys(("tls_certificate", "tls_key", "tls_ca"), Path("x.pem"))


@pytest.mark.parametrize(
    ("given", "shared"),
    [
        ({}, True),
        ({"same_host": "sockets"}, False),
        ({"transport": "rdma"}, False),
        ({"tls": True}, False),
        (_PEM, False),
    ],
)
def test_memory_is_shared_beside_plain_tcp_alone(given: dict[str, Any], shared: bool) -> None:
    """RDMA would register all of an emulated device with the NIC; TLS would leave it lying in small pages."""
    settings = Settings(**{"same_host": "shared-memory", **given})
    assert settings.use_shared_memory is shared
