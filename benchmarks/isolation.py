"""Do bursts of model execution feel KV traffic on the same NIC (paper §4)? What `dualpath bench isolation` does.

python -m benchmarks.isolation [--plot FILE]
"""

from __future__ import annotations

import sys

from dualpath.cli.main import app

if __name__ == "__main__":
    app(["bench", "isolation", *sys.argv[1:]], prog_name="isolation")
