"""Arguments of the server: port. Of the client: port and seconds."""
import asyncio
import sys
import time

HOST = "127.0.0.1"
MESSAGE = b"x" * 64


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve(port):
    server = await asyncio.start_server(echo, HOST, port)
    await server.serve_forever()


async def exchange(port, seconds):
    reader, writer = await asyncio.open_connection(HOST, port)
    count, start, elapsed = 0, time.perf_counter(), 0
    while elapsed < seconds:
        writer.write(MESSAGE)
        await reader.readexactly(len(MESSAGE))
        count += 1
        elapsed = time.perf_counter() - start
    print(f"exchanges/s: {count / elapsed:.0f}")
    writer.close()


port, *seconds = map(int, sys.argv[1:])
asyncio.run(exchange(port, *seconds) if seconds else serve(port))
