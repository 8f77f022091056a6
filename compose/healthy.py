"""Health check of a container: `healthy.py PORT [PATH] [--alive] [--api]` asks the process beside it how it is.

Exit code 0 for 200, or with `--alive` for any answer; prints what the process says of itself. With `--api` the port
is a gateway's, which speaks HTTPS where it has a certificate; it is not checked: nobody else answers there.
It runs often: only the modules that it needs are loaded.
"""

import os
import socket
import sys

CERTIFICATE = "DUALPATH_HTTP_CERTIFICATE"

TIMEOUT_S = 3.0


def connect(port: int, https: bool) -> socket.socket:
    """Raises OSError."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    if not https:
        return plain
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain)


def ask(port: int, path: str, https: bool) -> tuple[bool, str]:
    """Is it well, and its words. Raises OSError where nobody answers."""
    answer = b""
    with connect(port, https) as sock:
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
    https = "--api" in arguments and bool(os.environ.get(CERTIFICATE))
    port, path, *_ = [word for word in arguments if not word.startswith("--")] + ["/health"]
    try:
        well, words = ask(int(port), path, https)
        well = well or alive
    except OSError as error:
        well, words = False, f"no answer at port {port}: {error}"
    print(words)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
