"""`dualpath chat`: a conversation in the terminal, and after each answer how it was served."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from dualpath.cli.api_client import Answer, ApiClient, ApiProblem, Message
from dualpath.cli.words import complain

PROMPT = "you › "
_HELP = "/quit or Ctrl-D ends, /new begins anew, Ctrl-C stops an answer"


def chat(
    url: str,
    model: str | None,
    *,
    api_key: str | None,
    system: str | None,
    max_tokens: int,
    temperature: float,
) -> int:
    """Exit code: 0 ended by the user, 1 no API at `url`."""
    with suppress(ImportError):
        # Line editing and history, where this Python has them.
        import readline  # noqa: F401
    try:
        with ApiClient(url, api_key=api_key) as client:
            name = model or client.served().model
            print(f"{name} at {client.base_url}\n{_HELP}")
            talk = Conversation(
                client, name, system=system, max_tokens=max_tokens, temperature=temperature
            )
            talk.run(lambda: input(PROMPT))
    except ApiProblem as problem:
        complain(str(problem))
        return 1
    except KeyboardInterrupt:
        print()
    return 0


class Conversation:
    """What was said so far. `messages` always alternates: what failed is taken out again."""

    def __init__(
        self,
        client: ApiClient,
        model: str,
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        out: TextIO | None = None,
    ) -> None:
        self._client, self._model, self._system = client, model, system
        self._max_tokens, self._temperature = max_tokens, temperature
        self._out = out or sys.stdout
        self.messages: list[Message] = []
        self.begin()

    def begin(self) -> None:
        """Forget everything but the system prompt."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def run(self, read: Callable[[], str]) -> None:
        """Take lines from `read` until /quit or EOFError; KeyboardInterrupt there only drops the line."""
        goes_on = True
        while goes_on:
            try:
                goes_on = self._take(read)
            except KeyboardInterrupt:
                self._say(f"\n({_HELP})")

    def _take(self, read: Callable[[], str]) -> bool:
        """One line; whether there is to be another."""
        try:
            line = read().strip()
        except EOFError:
            self._say()
            return False
        match line:
            case "":
                pass
            case "/quit":
                return False
            case "/new":
                self.begin()
                self._say("(a new conversation)")
            case _ if line.startswith("/") and " " not in line:
                self._say(f"({line} is no command; {_HELP})")
            case _:
                self.ask(line)
        return True

    def ask(self, text: str) -> None:
        """One turn. A stopped answer stays as far as it came; of a failed one nothing stays."""
        pieces: list[str] = []

        def show(piece: str) -> None:
            pieces.append(piece)
            self._out.write(printable(piece))
            self._out.flush()

        question = {"role": "user", "content": text}
        try:
            answer = self._client.chat(
                self._model,
                [*self.messages, question],
                show,
                max_completion_tokens=self._max_tokens,
                temperature=self._temperature,
            )
        except KeyboardInterrupt:
            self._say("\n" + self._dim("[stopped]"))
        except ApiProblem as problem:
            self._say(f"{chr(10) if pieces else ''}dualpath: {problem}")
            return
        else:
            self._say("\n" + self._dim(how_served(answer)))
        if pieces:
            self.messages += [question, {"role": "assistant", "content": "".join(pieces)}]

    def _say(self, text: str = "") -> None:
        print(text, file=self._out, flush=True)

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._out.isatty() else text


def how_served(answer: Answer) -> str:
    """The line below an answer."""
    facts = [f"{answer.cached_tokens} of {answer.prompt_tokens} prompt tokens cached"]
    if answer.cached_tokens and answer.read_path:
        facts.append(f"path {answer.read_path}")
    facts.append(f"TTFT {answer.ttft_s:.2f} s")
    if answer.tokens_per_s is not None:
        facts.append(f"{answer.tokens_per_s:.1f} tokens/s")
    return f"[{' · '.join(facts)}]"


def printable(text: str) -> str:
    """`text` without what would steer the terminal; newlines and tabs stay.

    >>> printable("a\\x1b[2Jb\\n")
    'a[2Jb\\n'
    """
    return "".join(
        letter
        for letter in text
        if letter in "\n\t" or not (ord(letter) < 32 or 127 <= ord(letter) < 160)
    )
