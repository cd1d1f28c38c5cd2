// java Echo.java serve PORT nio | ask PORT nio: an echo over java.nio selectors on both sides.
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.util.*;

public class Echo {
    public static void main(String[] arguments) throws Exception {
        InetSocketAddress address =
            new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[1]));
        if (arguments[0].equals("serve")) serve(address);
        else ask(address);
    }

    static void serve(InetSocketAddress address) throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel server = ServerSocketChannel.open();
        server.bind(address);
        server.configureBlocking(false);
        server.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            Iterator<SelectionKey> ready = selector.selectedKeys().iterator();
            while (ready.hasNext()) {
                SelectionKey key = ready.next();
                ready.remove();
                if (key.isAcceptable()) {
                    SocketChannel client = server.accept();
                    client.configureBlocking(false);
                    client.register(selector, SelectionKey.OP_READ, ByteBuffer.allocate(20000));
                } else {
                    echo(key);
                }
            }
        }
    }

    static void echo(SelectionKey key) throws Exception {
        SocketChannel client = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        int count = key.isReadable() ? client.read(buffer) : 0;
        buffer.flip();
        client.write(buffer);
        boolean left = buffer.hasRemaining();
        buffer.compact();
        if (count < 0 && !left) {
            client.close();
            return;
        }
        int interest = left ? SelectionKey.OP_WRITE : 0;
        if (count >= 0 && buffer.hasRemaining()) interest |= SelectionKey.OP_READ;
        key.interestOps(interest);
    }

    static class Conversation {
        final Random sent;
        final Random expected;
        final ByteBuffer pending = ByteBuffer.allocate(5000);
        int toSend = 400_000;
        int toReceive = 400_000;

        Conversation(long seed) {
            sent = new Random(seed);
            expected = new Random(seed);
            pending.limit(0);
        }
    }

    static void ask(InetSocketAddress address) throws Exception {
        Selector selector = Selector.open();
        int left = 20;
        for (int client = 0; client < left; client++) {
            SocketChannel channel = SocketChannel.open();
            channel.configureBlocking(false);
            channel.connect(address);
            channel.register(selector, SelectionKey.OP_CONNECT, new Conversation(client));
        }
        ByteBuffer room = ByteBuffer.allocate(8000);
        while (left > 0) {
            if (selector.select(20_000) == 0) throw new Exception("nothing for 20 s");
            Iterator<SelectionKey> ready = selector.selectedKeys().iterator();
            while (ready.hasNext()) {
                SelectionKey key = ready.next();
                ready.remove();
                if (talk(key, room)) left--;
            }
        }
        System.out.println("all echoes right");
    }

    /** Whether the conversation has ended. */
    static boolean talk(SelectionKey key, ByteBuffer room) throws Exception {
        SocketChannel channel = (SocketChannel) key.channel();
        Conversation c = (Conversation) key.attachment();
        if (key.isConnectable()) {
            channel.finishConnect();
            key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
            return false;
        }
        if (key.isReadable()) {
            room.clear();
            if (channel.read(room) < 0) throw new Exception("ended early");
            room.flip();
            while (room.hasRemaining()) {
                if (room.get() != (byte) c.expected.nextInt()) throw new Exception("a wrong byte");
                c.toReceive--;
            }
        }
        if (key.isWritable()) {
            if (!c.pending.hasRemaining() && c.toSend > 0) {
                c.pending.clear();
                c.pending.limit(Math.min(c.toSend, c.pending.capacity()));
                while (c.pending.hasRemaining()) c.pending.put((byte) c.sent.nextInt());
                c.toSend -= c.pending.limit();
                c.pending.flip();
            }
            channel.write(c.pending);
            if (!c.pending.hasRemaining() && c.toSend == 0) key.interestOps(SelectionKey.OP_READ);
        }
        if (c.toReceive > 0) return false;
        channel.close();
        return true;
    }
}
