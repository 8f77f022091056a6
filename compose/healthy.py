"""Health check of a container: `healthy.py PORT [PATH]` asks the process beside it how it is.

Exit code 0 for 200; prints what the process says of itself. It runs often: only the socket module is loaded.
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
    port, path = int(arguments[0]), arguments[1] if len(arguments) > 1 else "/health"
    try:
        well, words = ask(port, path)
    except OSError as error:
        well, words = False, f"no answer at port {port}: {error}"
    print(words)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
