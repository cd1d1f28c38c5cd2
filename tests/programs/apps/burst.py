"""Many streams that all say something before any is answered, until a file is there.

usage: burst.py serve PORT
       burst.py ask PORT STREAMS FILE
"""

import os
import select
import socket
import sys

WORD = b"question"


def serve(port):
    listener = socket.create_server(("127.0.0.1", port), backlog=4096)
    streams, ready = {}, select.epoll()
    ready.register(listener, select.EPOLLIN)
    while True:
        for number, _ in ready.poll():
            if number == listener.fileno():
                stream, _ = listener.accept()
                streams[stream.fileno()] = stream
                ready.register(stream, select.EPOLLIN)
                continue
            said = streams[number].recv(4096)
            if said:
                streams[number].sendall(said)
            else:
                ready.unregister(number)
                streams.pop(number).close()


def ask(port, count, file):
    streams = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    while True:
        for stream in streams:
            stream.sendall(WORD)
        for stream in streams:
            answer = b""
            while len(answer) < len(WORD):
                part = stream.recv(len(WORD) - len(answer))
                assert part, "the server closed"
                answer += part
            assert answer == WORD, answer
        if os.path.exists(file):
            break
    print("all answers right")


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
else:
    ask(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
