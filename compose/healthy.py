"""Health check of a container: `healthy.py PORT [PATH] [--alive]` asks the process beside it how it is.

Exit code 0 for 200, or with `--alive` for any answer; prints what the process says of itself. It runs often: only
the socket module is loaded.
"""

import socket
import sys

TIMEOUT_S = 3.0


def ask(port: int, path: str) -> tuple[bool, str]:
    """Is it well, and its words. Raises OSError where nobody answers."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as sock:
        sock.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        while data := sock.recv(4096):
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n", 1)[0].split(b" ")[1:2] == [b"200"], body.decode(
        errors="replace"
    ).strip()


def main(arguments: list[str]) -> int:
    alive = "--alive" in arguments
    port, path, *_ = [word for word in arguments if word != "--alive"] + ["/health"]
    try:
        well, words = ask(int(port), path)
        well = well or alive
    except OSError as error:
        well, words = False, f"no answer at port {port}: {error}"
    print(words)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
