"""A server with thousands of streams that starts processes all the time, and a client that checks every
answer.

forks.py serve PORT
forks.py ask PORT STREAMS MESSAGES FILE: once FILE is there every stream is on a ring
"""
import os
import random
import resource
import select
import socket
import sys

# For these no process is started.
WARM = b"warm"
# A process is started for so many messages.
MESSAGES_PER_PROCESS = 40
# A process has a stream yet when the server closes it, for so many that end.
STREAMS_PER_PROCESS = 500
TRUE = "/bin/true"


def start_process(number):
    """Forks and exits, forks and becomes another program, or lets the C library do it (posix_spawn)."""
    if number % 3 == 2:
        return os.posix_spawn(TRUE, [TRUE], os.environ)
    child = os.fork()
    if child == 0:
        if number % 3 == 1:
            os.execv(TRUE, [TRUE])
        os._exit(0)
    return child


def close_while_a_process_has_it(stream):
    """The other end finds the end of the stream when that process ends."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    stream.close()
    os.close(writer)
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
    os.close(reader)


def serve(port):
    listener = socket.create_server(("127.0.0.1", port), backlog=4096)
    listener.setblocking(False)
    poller = select.epoll()
    poller.register(listener, select.EPOLLIN)
    streams, children, messages, ended = {}, [], 0, 0
    while True:
        for fd, _ in poller.poll():
            if fd == listener.fileno():
                stream, _ = listener.accept()
                stream.setblocking(False)
                streams[stream.fileno()] = stream
                poller.register(stream, select.EPOLLIN)
                continue
            message = streams[fd].recv(1000)
            if not message:
                poller.unregister(fd)
                if ended % STREAMS_PER_PROCESS == 0:
                    close_while_a_process_has_it(streams.pop(fd))
                else:
                    streams.pop(fd).close()
                ended += 1
                continue
            streams[fd].sendall(message)
            messages += message != WARM
            if message != WARM and messages % MESSAGES_PER_PROCESS == 0:
                children.append(start_process(len(children)))
                if len(children) % 3 == 0:
                    for child in children[-3:]:
                        status = os.waitpid(child, 0)[1]
                        assert status == 0, status


def ask(port, count, messages, file):
    streams = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for stream in streams:
        stream.settimeout(60)
    while not os.path.exists(file):
        for stream in streams:
            exchange([stream], [WARM])
    chosen = random.Random(1)
    for number in range(messages // 20):
        exchange(chosen.sample(streams, 20), [f"message {number} of {at}".encode() for at in range(20)])
    for stream in streams:
        stream.shutdown(socket.SHUT_WR)
        assert stream.recv(1) == b""
    print("all answers right")


def exchange(streams, sent):
    for stream, message in zip(streams, sent):
        stream.sendall(message)
    for stream, message in zip(streams, sent):
        answer = stream.recv(len(message), socket.MSG_WAITALL)
        assert answer == message, (answer, message)


if __name__ == "__main__":
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        ask(*map(int, sys.argv[2:5]), sys.argv[5])
