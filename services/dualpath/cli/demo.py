"""`dualpath demo`: an agent at work, and which side's NIC reads its KV-Cache."""

from __future__ import annotations

import secrets
from contextlib import ExitStack

from rich.console import Console
from rich.live import Live

from dualpath.cli.agent import run_agent
from dualpath.cli.api_client import ApiClient, ApiProblem
from dualpath.cli.demo_cluster import EMULATED_TOKEN_S, NicWatch, emulates, own_cluster
from dualpath.cli.demo_view import DemoView, ttft_table
from dualpath.cli.started import NotStarted, ends_in_order
from dualpath.cli.words import INTERRUPTED, WRONG_USE, complain
from dualpath.cluster.home import Home
from dualpath.cluster.stop import running_cluster
from dualpath.settings import load_settings
from dualpath.settings.settings import NAMED_MODELS


def demo(model: str | None, url: str | None, *, api_key: str | None = None) -> int:
    """Exit code: 0 all turns were shown, 1 the cluster failed, 2 wrong use, 130 after Ctrl-C, SIGTERM or SIGHUP."""
    console = Console(highlight=False)
    if problem := _wrong_use(model, url):
        complain(problem)
        return WRONG_USE
    try:
        with ends_in_order(), ExitStack() as stack:
            if url is None:
                name = model or NAMED_MODELS[0]
                with console.status(f"Starting a cluster that serves {name}, for this demo only …"):
                    home, record = stack.enter_context(own_cluster(name))
                if emulates(name):
                    console.print(
                        f"The engines are emulated: {EMULATED_TOKEN_S * 1e6:g} µs a prompt token."
                    )
                _show(ApiClient(record.base_urls[0], api_key=api_key), home, console)
                console.print("Stopping the cluster …")
            else:
                _show(ApiClient(url, api_key=api_key), _home_of(url), console)
    except (ApiProblem, NotStarted, ValueError) as error:
        complain(str(error))
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _wrong_use(model: str | None, url: str | None) -> str | None:
    if model is not None and url is not None:
        return "a cluster at --url has its model already; leave --model out"
    if model is not None and model not in NAMED_MODELS:
        return f"{model} is no model of the demo; choose {', '.join(NAMED_MODELS)}"
    return None


def _show(api: ApiClient, home: Home | None, console: Console) -> None:
    """Run the agent under the live view; what was measured is shown however it ends."""
    with api as client:
        served = client.served()
        console.print(f"{served.model} at {client.base_url}", soft_wrap=True)
        with ExitStack() as stack:
            watch = None if home is None else NicWatch(home)
            height = console.size.height if console.is_terminal else None
            view = DemoView(None if watch is None else watch.latest, height)
            try:
                stack.enter_context(Live(view, console=console, refresh_per_second=4))
                if watch is not None:
                    stack.enter_context(watch)
                run_agent(client, served, secrets.token_hex(8), view.turns.append)
            finally:
                view.height = None
                stack.close()
                if not console.is_terminal:
                    # There, the view leaves its last line open.
                    console.print()
                if view.turns:
                    console.print(ttft_table(view.turns))


def _home_of(url: str) -> Home | None:
    """The home of the cluster at `url`, where it is the one on this user's home: its NICs can then be asked.
    Raises ValueError for settings of the environment that are wrong."""
    home = Home(load_settings().home)
    record = running_cluster(home)
    return home if record is not None and url.rstrip("/") in record.base_urls else None
