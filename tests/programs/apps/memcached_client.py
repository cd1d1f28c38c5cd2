"""Sets and gets values of many sizes over several connections, by memcached's text protocol."""
import hashlib
import socket
import sys
import threading

PORT = int(sys.argv[1])


def content(key):
    block = hashlib.sha512(key.encode()).hexdigest().encode()
    size = int(hashlib.md5(key.encode()).hexdigest(), 16) % 20000
    return (block * (size // len(block) + 1))[:size]


def client(number, wrong):
    try:
        with socket.create_connection(("127.0.0.1", PORT)) as stream:
            file = stream.makefile("rwb")
            for index in range(500):
                key = f"key-{number}-{index}"
                value = content(key)
                file.write(b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), len(value), value))
                file.flush()
                assert file.readline() == b"STORED\r\n", key
            for index in range(500):
                key = f"key-{number}-{index}"
                file.write(b"get %s\r\n" % key.encode())
                file.flush()
                head = file.readline().split()
                assert head[:2] == [b"VALUE", key.encode()], head
                value = file.read(int(head[3]) + 2)[:-2]
                assert value == content(key), key
                assert file.readline() == b"END\r\n", key
    except BaseException as error:
        wrong.append((number, repr(error)))


wrong = []
threads = [threading.Thread(target=client, args=(number, wrong)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not wrong, wrong
print("all values right")
