"""A stream that carries much, rests until its memory is small, and carries much again, by turns.

usage: rest.py serve PORT
       rest.py ask PORT KIB-MAX SECONDS-MAX

Tells how many KiB of rings this process had at most after a burst, and how many at rest.
"""

import socket
import sys
import time

BURST = 1_500_000


def rings_kib():
    """Resident memory of the links' mappings."""
    total, of_a_link = 0, False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if "-" in line.split()[0]:
                of_a_link = "shunt-link" in line
            elif of_a_link and line.startswith("Rss:"):
                total += int(line.split()[1])
    return total


def content(turn):
    return bytes((turn * 31 + i) % 251 for i in range(997)) * (BURST // 997)


def take(stream, count):
    got = bytearray()
    while len(got) < count:
        part = stream.recv(count - len(got))
        assert part, "the other end closed"
        got += part
    return bytes(got)


def serve(port):
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            stream, _ = listener.accept()
            while part := stream.recv(65536):
                stream.sendall(part)
            stream.close()


def ask(port, kib_max, seconds_max):
    with socket.create_connection(("127.0.0.1", port)) as stream:
        for turn in range(20):
            stream.sendall(b"small")
            assert take(stream, 5) == b"small"
        for turn in range(3):
            bytes_sent = content(turn)
            grown = 0
            for start in range(0, len(bytes_sent), 200_000):
                piece = bytes_sent[start : start + 200_000]
                stream.sendall(piece)
                grown = max(grown, rings_kib())
                assert take(stream, len(piece)) == piece, "other bytes came back"
            end = time.monotonic() + seconds_max
            while (rested := rings_kib()) > kib_max and time.monotonic() < end:
                time.sleep(0.05)
            print(f"turn {turn}: grew to {grown} KiB, rested at {rested} KiB")


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
else:
    ask(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
