"""The containers of compose/, through the compose command that the extra `compose` installs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "compose" / "docker-compose.yml"


def find_tool(name: str) -> str | None:
    """The command beside this Python, else one on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def compose(*arguments: str, check: bool = True, **environment: str) -> str:
    """Run the compose command without settings of this shell or of compose/.env; returns what it prints. Fails
    with all that it said."""
    tool = find_tool("docker-compose")
    assert tool is not None, "install the extra `compose`"
    ours = ("DUALPATH_", "COMPOSE_", "API_", "CLUSTER_", "MODELS", "TORCH_INDEX")
    clean = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [tool, "--env-file", os.devnull, *arguments],
        env={**clean, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if check and done.returncode:
        raise AssertionError(
            f"docker-compose {' '.join(arguments)} ended with {done.returncode}:\n"
            f"{done.stdout[-4000:]}{done.stderr[-4000:]}"
        )
    return done.stdout


def resolved(*profiles: str) -> dict[str, Any]:
    """The compose file with all its anchors, defaults and variables filled in."""
    chosen = [word for profile in profiles for word in ("--profile", profile)]
    text = compose("-f", str(COMPOSE_FILE), *chosen, "config", "--format", "json")
    config: dict[str, Any] = json.loads(text)
    return config


def why_no_engine() -> str | None:
    """None where a Docker engine answers; else a sentence."""
    tool = find_tool("docker-compose")
    if tool is None:
        return "no docker-compose command; install the extra `compose`"
    done = subprocess.run([tool, "ls"], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == 0:
        return None
    return (
        "no Docker engine answers, so the containers were checked but not run; "
        "start one, or point DOCKER_HOST at one"
    )


class ContainerCluster:
    """The cluster of the compose file in a project of its own, its API at a free port.

    Answers are to be compared, so it computes in float32.
    """

    def __init__(self, scratch: Path) -> None:
        names = resolved("1p2d")["services"]
        override = scratch / "override.yml"
        override.write_text(
            "services:\n"
            + "".join(
                f"  {name}:\n    env_file: !override []\n"
                + ("" if name == "nats" else "    environment: {DUALPATH_DTYPE: float32}\n")
                for name in names
            )
        )
        self._files = ("-f", str(COMPOSE_FILE), "-f", str(override))
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port: int = server.getsockname()[1]
        self._project = f"dualpath-test-{os.getpid()}"
        self._environment = {
            "DUALPATH_PORT": str(self.port),
            "CLUSTER_IMAGE": "dualpath:compose-test",
        }

    def run(self, *arguments: str, check: bool = True) -> str:
        return compose(
            "-p", self._project, *self._files, *arguments, check=check, **self._environment
        )

    def up(self, *services: str) -> None:
        """Start what does not run, and wait until it is healthy."""
        try:
            self.run(*self._all(services), "up", "-d", "--wait", "--wait-timeout", "300", *services)
        except AssertionError as error:
            logs = self.run("logs", "--tail", "40", check=False)
            raise AssertionError(f"{error}\n{logs[-8000:]}") from None

    @staticmethod
    def _all(services: tuple[str, ...]) -> tuple[str, ...]:
        """Services that are named may be of any profile."""
        return ("--profile", "1p2d") if services else ()

    def containers(self) -> dict[str, dict[str, Any]]:
        """By service, whether it runs or not: State, Health, ExitCode, …"""
        lines = self.run("--profile", "1p2d", "ps", "-a", "--format", "json").splitlines()
        return {entry["Service"]: entry for entry in map(json.loads, lines)}

    def crash(self, service: str) -> None:
        """SIGKILL the process itself, as the kernel does when memory is short; the engine may react."""
        code = """
import os, pathlib, signal
children = pathlib.Path("/proc/1/task/1/children").read_text().split()
os.kill(int(children[0]), signal.SIGKILL)
"""
        self.run("exec", "-T", service, "python", "-c", code, check=False)

    def python(self, service: str, code: str) -> str:
        """What `code` prints, run inside of a service's container."""
        return self.run("exec", "-T", service, "python", "-c", code).strip()
