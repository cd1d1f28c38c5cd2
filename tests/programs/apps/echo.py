"""An echo server in three styles, and a client that checks every byte.

echo.py serve PORT asyncio|threads|forks
echo.py ask PORT STYLE
"""
import asyncio
import hashlib
import socket
import socketserver
import sys
import threading


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        while piece := self.request.recv(30000):
            self.request.sendall(piece)


async def serve_asyncio(port):
    async def handle(reader, writer):
        while piece := await reader.read(30000):
            writer.write(piece)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", port)
    await server.serve_forever()


def serve(port, style):
    if style == "asyncio":
        asyncio.run(serve_asyncio(port))
    kind = {"threads": socketserver.ThreadingTCPServer, "forks": socketserver.ForkingTCPServer}
    kind[style].allow_reuse_address = True
    with kind[style](("127.0.0.1", port), Handler) as server:
        server.serve_forever()


def content(seed, size):
    block = hashlib.sha512(str(seed).encode()).digest()
    return (block * (size // len(block) + 1))[:size]


async def ask_asyncio(port, client):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for round in range(200):
        message = content(client * 1000 + round, 1 + round * 7 % 500)
        writer.write(message)
        assert await reader.readexactly(len(message)) == message, (client, round)
    large = content(client, 1_000_000)
    writer.write(large)
    writer.write_eof()
    assert await reader.read(-1) == large, client
    writer.close()


async def ask_all(port):
    await asyncio.gather(*(ask_asyncio(port, client) for client in range(20)))


def ask_blocking(port, client, wrong):
    try:
        with socket.create_connection(("127.0.0.1", port)) as stream:
            for round in range(200):
                message = content(client * 1000 + round, 1 + round * 7 % 500)
                stream.sendall(message)
                assert stream.recv(len(message), socket.MSG_WAITALL) == message, round
            large = content(client, 1_000_000)
            writer = threading.Thread(target=stream.sendall, args=(large,))
            writer.start()
            got = bytearray()
            while len(got) < len(large):
                piece = stream.recv(65536)
                assert piece, "ended early"
                got += piece
            writer.join()
            assert bytes(got) == large
            stream.shutdown(socket.SHUT_WR)
            assert stream.recv(1) == b""
    except BaseException as error:
        wrong.append((client, repr(error)))


def ask(port, style):
    if style == "asyncio":
        asyncio.run(ask_all(port))
    else:
        wrong = []
        clients = [threading.Thread(target=ask_blocking, args=(port, n, wrong)) for n in range(8)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert not wrong, wrong
    print("all echoes right")


def main():
    action, port, style = sys.argv[1:]
    (serve if action == "serve" else ask)(int(port), style)


main()
