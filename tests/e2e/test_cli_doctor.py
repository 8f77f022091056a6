"""`dualpath doctor` beside a running cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.support.cluster import LocalCluster


def test_a_cluster_that_runs_is_told_and_its_own_port_is_no_fault(cluster: LocalCluster) -> None:
    port = cluster.base_url.rsplit(":", 1)[1].removesuffix("/v1")
    clean = {name: text for name, text in os.environ.items() if not name.startswith("DUALPATH_")}
    asked = subprocess.run(
        [sys.executable, "-m", "dualpath.cli.main", "doctor", "--json", "--model", "synthetic",
         "--home", str(cluster.home), "--port", port],
        env=clean, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert asked.returncode == 0, asked.stdout
    findings = {finding["what"]: finding for finding in json.loads(asked.stdout)["findings"]}
    assert findings["cluster"]["verdict"] == "note"
    assert cluster.base_url in findings["cluster"]["text"]
    assert f"dualpath down --home {cluster.home}" in findings["cluster"]["advice"]
