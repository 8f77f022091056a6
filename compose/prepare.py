"""What must be there before a cluster of containers starts: its secrets and the model's files.

Run it once per start, before anything else; what is there already stays. Settings come from the environment;
secrets go to the file that DUALPATH_CONFIG names, which only this user may read.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path

from dualpath.cluster.home import write_private
from dualpath.cluster.nats_server import nats_config
from dualpath.memory.admission import check_capacity
from dualpath.model.api import ModelError
from dualpath.model.prepare import prepare_model
from dualpath.model.spec import load_spec
from dualpath.settings import CONFIG_VARIABLE, Settings, load_settings

NATS_PORT = 4222
NATS_HEALTH_PORT = 8222


def make_secrets(file: Path) -> None:
    """Draw the cluster's secrets, unless they were drawn before."""
    if not file.exists():
        drawn = {
            "secret": secrets.token_hex(32),
            "nats_user": "dualpath",
            "nats_password": secrets.token_hex(24),
        }
        write_private(file, json.dumps(drawn, indent=2).encode())


def write_nats_config(file: Path, settings: Settings) -> None:
    """The NATS server's file: the login that the others use, and /healthz for its own container only."""
    user, password = settings.nats_user, settings.nats_password
    if not user or not password:
        raise ValueError(
            "nats_user and nats_password must not be empty; leave them out to have them drawn"
        )
    config = nats_config("dualpath", "0.0.0.0", NATS_PORT, user, password)
    write_private(file, f'{config}http: "127.0.0.1:{NATS_HEALTH_PORT}"\n'.encode())


def prepare_files(settings: Settings) -> list[str]:
    """Make the model's files and hash its weights, so that services may have them read-only. Returns why the
    cluster cannot serve it, if so. Raises ModelError."""
    prepare_model(settings, lambda line: print(line, flush=True))
    spec = load_spec(settings)
    return check_capacity(settings, spec.geometry, spec.max_context)


def main() -> int:
    """Prints sentences; exit code 1: something is to be corrected first."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named is None:
        print(f"{CONFIG_VARIABLE} is not set; name the file that is to hold the secrets")
        return 1
    try:
        make_secrets(Path(named))
        settings = load_settings()
        write_nats_config(Path(named).with_name("nats.conf"), settings)
        problems = prepare_files(settings)
    except (ModelError, ValueError, OSError) as error:
        problems = [str(error)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
