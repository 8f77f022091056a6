"""Links between processes of one host, which read what is written to them out of the writer's memory.

Everything but the payload stays on the TCP link: its handshake, lanes, NICs, acknowledgements, messages. Where the
payload of a frame lies in memory that the writer shares, the frame says where (PULL), and the target copies it into
its region from there: once, where a socket copies twice. Nobody can write into another process's memory.

    writer                                              target
                                                        listens at an abstract Unix socket, named in its HELLO
    descriptors of its memory, mac  →  (Unix socket)    maps them, to read only
                                    ←  (Unix socket)    a byte
    PULL (region, extents)          →  (link)           copies, looks whether the link was given up
                                    ←  (link)           PULLED, or WRITE_ACK for the last of a write

The name is known in one network namespace only, so containers of one host with namespaces of their own do without.

When may the writer use its memory again? When the target has answered the frame. So a write that is cancelled ends
after that answer, and no earlier. Where none comes, the link is given up: the writer says so in a shared word, and
then every processor passes a barrier (`fence`). A target that reads later sees the word when it has copied, and
counts nothing of it. So what a region is told of was whole, as over a socket.
"""

from dualpath.transport.samehost.endpoint import SameHostEndpoint, available

__all__ = ["SameHostEndpoint", "available"]
