"""The clusters that experiments compare: `dualpath up` on a home of their own, one at a time."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dualpath.cli.started import started
from dualpath.cluster.home import Home
from dualpath.cluster.record import ClusterRecord
from dualpath.settings import ENV_PREFIX, Settings, load_settings


@dataclass(frozen=True)
class Running:
    """A cluster that is ready. `start_s`: how long that took."""

    home: Home
    record: ClusterRecord
    settings: Settings
    start_s: float

    @property
    def base_url(self) -> str:
        return self.record.base_urls[0]


class Clusters:
    """Makes them in a directory that is theirs. The environment's settings do not hold, so that what is compared is
    all in the arguments. `models`: where converted checkpoints are, or will be, kept from one to the next."""

    def __init__(self, directory: Path, models: Path | None = None) -> None:
        self._directory = directory
        self._models = models or directory / "models"
        self._models.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def cluster(
        self, settings: Mapping[str, Any], *, store: Path | None = None, keep: Path | None = None
    ) -> Iterator[Running]:
        """One for as long as the block runs; its home is removed then. `store`: what its shards have from the start;
        `keep`: where to put what they have in the end, for the next one's `store`. To be entered on the main
        thread. Raises NotStarted, and ValueError for settings that are wrong."""
        with TemporaryDirectory(prefix="home-", dir=self._directory) as root:
            home = Home(Path(root))
            home.models.symlink_to(self._models)
            if store is not None:
                shutil.copytree(store, home.store)
            config = home.root / "bench.json"
            config.write_text(json.dumps({"log_level": "warning", **settings}))
            own = {k: v for k, v in os.environ.items() if k.startswith(ENV_PREFIX)}
            clean = {k: v for k, v in os.environ.items() if k not in own}
            for name in own:
                del os.environ[name]
            try:
                checked = load_settings(config, home=home.root)
            finally:
                os.environ.update(own)
            began = time.monotonic()
            arguments = ["--config", str(config)]
            log = home.root / "up.log"
            # A client that waits for a core measures that wait.
            with started(home, arguments, clean, log, behind=True) as record:
                yield Running(home, record, checked, time.monotonic() - began)
            if keep is not None:
                shutil.copytree(home.store, keep)
