"""What compose/ says, read without an engine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.compose import ROOT, find_tool, resolved

HERE = ROOT / "compose"
PROFILES = ("1p2d", "observability")
FOREIGN = {"prometheus", "grafana"}

needs_compose = pytest.mark.skipif(
    find_tool("docker-compose") is None, reason="needs the extra `compose`"
)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = resolved(*PROFILES)["services"]
    return found


@pytest.mark.skipif(find_tool("hadolint") is None, reason="needs the extra `compose`")
def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    tool = find_tool("hadolint")
    assert tool is not None
    done = subprocess.run(
        [tool, str(HERE / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@needs_compose
@pytest.mark.parametrize("profiles", [(), ("1p1d",), ("1p2d",), ("observability",), PROFILES])
def test_every_profile_has_exactly_its_services(profiles: tuple[str, ...]) -> None:
    wanted = {
        *("prepare", "nats", "storage-0", "storage-1", "scheduler"),
        *("prefill-0", "decode-0", "gateway"),
    }
    if "1p2d" in profiles:
        wanted.add("decode-1")
    if "observability" in profiles:
        wanted |= FOREIGN
    assert set(resolved(*profiles)["services"]) == wanted


@needs_compose
def test_no_service_has_more_rights_than_it_needs(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["init"], name
        assert service["stop_grace_period"] == "10s", name
        assert not service["user"].startswith("0"), name
        for right in ("privileged", "cap_add", "devices", "pid", "ipc", "network_mode"):
            assert not service.get(right), (name, right)


@needs_compose
def test_ports_are_published_on_loopback_only(services: dict[str, Any]) -> None:
    published = {
        name: [(port["host_ip"], port["published"]) for port in service["ports"]]
        for name, service in services.items()
        if service.get("ports")
    }
    assert published == {
        "gateway": [("127.0.0.1", "8000")],
        "prometheus": [("127.0.0.1", "9090")],
        "grafana": [("127.0.0.1", "3000")],
    }
    assert resolved()["networks"]["cluster"]["internal"]


@needs_compose
def test_every_long_running_process_of_ours_is_checked_and_restarted(
    services: dict[str, Any],
) -> None:
    for name in set(services) - FOREIGN - {"prepare"}:
        assert "/opt/dualpath/healthy.py" in services[name]["healthcheck"]["test"], name
        assert services[name]["restart"] == "unless-stopped", name


@needs_compose
def test_no_secret_is_in_an_environment_or_a_command(services: dict[str, Any]) -> None:
    for name, service in services.items():
        words = [*service.get("environment", {}), *(service.get("command") or [])]
        assert not [word for word in words if re.search("secret|password|token", word, re.I)], name


@needs_compose
def test_processes_are_told_their_own_names_and_all_shards(services: dict[str, Any]) -> None:
    shards = {name for name in services if name.startswith("storage-")}
    for name in set(services) - FOREIGN - {"prepare", "nats"}:
        environment, command = services[name]["environment"], services[name]["command"]
        assert command[command.index("--name") + 1].startswith(name)
        assert environment.get("DUALPATH_ANNOUNCE", name) == name
        for shard in shards:
            assert f'"{shard}={shard}:' in environment["DUALPATH_SHARD_ADDRESSES"]


@needs_compose
def test_prometheus_asks_every_process_at_the_port_that_it_has(services: dict[str, Any]) -> None:
    text = (HERE / "prometheus.yml").read_text()
    asked = {
        (name, port)
        for names, port in re.findall(r"names: \[([^]]+)\], type: A, port: (\d+)", text)
        for name in names.split(", ")
    }
    assert asked == {
        (name, "8000" if name == "gateway" else "9100")
        for name in set(services) - FOREIGN - {"prepare", "nats"}
    }


def test_nothing_but_sources_goes_to_the_engine_that_builds() -> None:
    first, *rest = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert first == "*"
    taken = {Path(line.removeprefix("!")).parts[0] for line in rest if line.startswith("!")}
    assert taken == {
        *("pyproject.toml", "constraints.txt", "README.md", "LICENSE"),
        *("services", "shared", "loadgen", "compose"),
    }


def test_what_the_example_shows_are_settings_or_variables_of_the_compose_file() -> None:
    from dualpath.settings import ENV_PREFIX, Settings

    names = re.findall(r"^# ([A-Z_]+)=", (HERE / ".env.example").read_text(), re.M)
    text = (HERE / "docker-compose.yml").read_text()
    for name in names:
        if name.startswith(ENV_PREFIX):
            assert name.removeprefix(ENV_PREFIX).lower() in Settings.model_fields, name
        else:
            assert name == "COMPOSE_PROFILES" or f"${{{name}:-" in text, name
    assert set(re.findall(r"\$\{([A-Z_]+)", text)) <= {*names, "DUALPATH_LOG_FORMAT"}
