"""A process that behaves like a service, as far as the supervisor sees: `ROLE --name N --ready-fd F`.

What is unusual about it comes as JSON in $TINY_SERVICES: {"NAME": ["fail" | "silent" | "deaf", …]}.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> None:
    role = sys.argv[1]
    options = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    name = options["--name"]
    habits = json.loads(os.environ.get("TINY_SERVICES", "{}")).get(name, [])
    print(f"{role} {name} starts", flush=True)
    if "fail" in habits:
        print("what it died of", file=sys.stderr, flush=True)
        raise SystemExit(7)
    if role in ("prefill", "decode"):
        # They finish what they have, which is nothing, and leave in order.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if "deaf" in habits:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "silent" not in habits:
        ready = {
            "http_port": 1,
            "data": "127.0.0.1:2" if role == "storage" else None,
            "url": f"http://127.0.0.1:{options.get('--port')}/v1" if role == "gateway" else None,
        }
        descriptor = int(options["--ready-fd"])
        os.write(descriptor, json.dumps(ready).encode())
        os.close(descriptor)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
