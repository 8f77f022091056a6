"""`dualpath chat` as a user has it: a process, lines in, text out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.cluster import LocalCluster, until

LONG = "Tell me about storage, networks and memory, at length please. " * 4


class Chat:
    """A running `dualpath chat`; `shown` grows as it prints."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        self.process, self._stdin = process, process.stdin
        self.shown = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while data := os.read(self.process.stdout.fileno(), 65536):
            self.shown += data.decode("utf-8", "replace")

    def type(self, line: str) -> None:
        self._stdin.write(line.encode() + b"\n")
        self._stdin.flush()

    def end(self) -> int:
        """Ctrl-D; returns the exit code."""
        self._stdin.close()
        code = self.process.wait(30)
        self._reader.join(30)
        return code


@contextmanager
def chatting(url: str, *options: str) -> Iterator[Chat]:
    command = [sys.executable, "-u", "-m", "dualpath.cli.main", "chat", "--url", url, *options]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        chat = Chat(process)
        try:
            yield chat
        finally:
            process.kill()


def test_a_second_turn_is_read_from_storage_and_says_so(cluster: LocalCluster) -> None:
    with chatting(cluster.base_url, "--max-tokens", "8", "--temperature", "0") as chat:
        chat.type(LONG)
        until(lambda: chat.shown.count("prompt tokens cached") == 1, "a first answer")
        assert "[0 of " in chat.shown
        chat.type("And now?")
        until(lambda: chat.shown.count("prompt tokens cached") == 2, "a second answer")
        assert chat.end() == 0
    last = chat.shown.splitlines()[-2]
    assert " · path " in last
    assert " · TTFT " in last
    assert " tokens/s]" in last
    cluster.until_idle()


def test_ctrl_c_stops_an_answer_here_and_in_the_cluster_and_the_talk_goes_on(
    cluster: LocalCluster,
) -> None:
    with chatting(cluster.base_url, "--temperature", "0") as chat:
        chat.type("Go on without an end.")
        until(lambda: len(chat.shown.partition("you › ")[2]) > 40, "the answer's beginning")
        chat.process.send_signal(signal.SIGINT)
        until(lambda: "[stopped]" in chat.shown, "the answer was stopped")
        cluster.until_idle()
        chat.type("/new")
        until(lambda: "(a new conversation)" in chat.shown, "the next line is taken")
        assert chat.end() == 0


def test_a_refusal_is_a_sentence(cluster: LocalCluster) -> None:
    with chatting(cluster.base_url, "--model", "another") as chat:
        chat.type("Hello")
        until(lambda: "dualpath: " in chat.shown, "the refusal")
        assert chat.end() == 0
    assert "another" in chat.shown
    assert "Traceback" not in chat.shown


def test_without_a_cluster_it_says_what_to_do() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "dualpath.cli.main", "chat", "--url", "http://127.0.0.1:9/v1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "dualpath: nothing listens at http://127.0.0.1:9/v1; start a cluster with `dualpath up`, "
        "or give the address of one with --url\n"
    )
