"""A server that is late to accept, so that each client has said all before. The client says how many descriptors it has.

usage: late.py serve PORT CONNECTIONS
       late.py ask PORT CONNECTIONS
"""

import os
import socket
import sys
import time

WORDS = 200


def serve(port, connections):
    with socket.create_server(("127.0.0.1", port), backlog=64) as listener:
        while connections > 0:
            time.sleep(0.02)
            with listener.accept()[0] as stream:
                text = b""
                while piece := stream.recv(65536):
                    text += piece
            if text:  # Otherwise somebody only looked whether anybody listens.
                assert text == b"hello" * WORDS, text
                connections -= 1
        with listener.accept()[0] as stream:
            stream.sendall(b"%d" % os.getpid())
            assert not stream.recv(1)


def ask(port, connections):
    for _ in range(connections):
        with socket.create_connection(("127.0.0.1", port)) as stream:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(WORDS):
                stream.sendall(b"hello")
                time.sleep(0.0001)
            stream.shutdown(socket.SHUT_WR)
            assert not stream.recv(1)
    with socket.create_connection(("127.0.0.1", port)) as stream:
        print(len(os.listdir(f"/proc/{int(stream.recv(20))}/fd")), "descriptors")


{"serve": serve, "ask": ask}[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
