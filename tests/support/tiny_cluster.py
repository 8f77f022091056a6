"""`python tests/support/tiny_cluster.py HOME [--detach]`: the real supervisor and NATS, over services of the
tiny kind (tiny_service.py). Settings come from the environment as usual."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from dualpath.cluster.checks import CannotStart
from dualpath.cluster.detach import run_detached
from dualpath.cluster.home import Home
from dualpath.cluster.output import Console
from dualpath.cluster.supervisor import Supervisor
from dualpath.settings import load_settings


def supervise(home: Path, on_ready: Callable[[], None] | None) -> int:
    settings = load_settings(model="synthetic", max_context=4096, home=home, port=0)
    serve = [sys.executable, str(Path(__file__).with_name("tiny_service.py"))]
    console = Console(["nats"])

    def in_background() -> None:
        console.quiet()
        if on_ready is not None:
            on_ready()

    supervisor = Supervisor(
        settings, console, on_ready=None if on_ready is None else in_background, serve=serve
    )
    try:
        return asyncio.run(supervisor.run())
    except CannotStart as error:
        print(error, file=sys.stderr)
        return 2


def main() -> int:
    home = Path(sys.argv[1])
    if "--detach" not in sys.argv:
        return supervise(home, None)
    return run_detached(
        Home(home).log_file("supervisor"), lambda on_ready: supervise(home, on_ready)
    )


if __name__ == "__main__":
    sys.exit(main())
