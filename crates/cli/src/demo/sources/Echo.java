import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;

/** Arguments of the server: port. Of the client: port and seconds. */
class Echo {
    static final String HOST = "127.0.0.1";
    static final int MESSAGE_BYTES = 64;

    public static void main(String[] args) throws IOException {
        int port = Integer.parseInt(args[0]);
        if (args.length == 1) {
            serve(port);
        } else {
            exchange(port, Integer.parseInt(args[1]));
        }
    }

    static void serve(int port) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(HOST, port));
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        ByteBuffer buffer = ByteBuffer.allocateDirect(65536);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel channel = listener.accept();
                    channel.configureBlocking(false);
                    channel.register(selector, SelectionKey.OP_READ);
                } else {
                    echo((SocketChannel) key.channel(), buffer);
                }
            }
            selector.selectedKeys().clear();
        }
    }

    static void echo(SocketChannel channel, ByteBuffer buffer) throws IOException {
        buffer.clear();
        if (channel.read(buffer) < 0) {
            channel.close();
            return;
        }
        buffer.flip();
        while (buffer.hasRemaining()) {
            channel.write(buffer);
        }
    }

    static void exchange(int port, int seconds) throws IOException {
        try (Socket socket = new Socket(HOST, port)) {
            socket.setTcpNoDelay(true);
            exchanges(socket, 0.5); // until most of it is compiled
            System.out.printf("exchanges/s: %.0f%n", exchanges(socket, seconds));
        }
    }

    static double exchanges(Socket socket, double seconds) throws IOException {
        DataInputStream in = new DataInputStream(socket.getInputStream());
        OutputStream out = socket.getOutputStream();
        byte[] message = new byte[MESSAGE_BYTES];
        long start = System.nanoTime(), time = 0, count = 0;
        while (time < seconds * 1e9) {
            out.write(message);
            in.readFully(message);
            count++;
            time = System.nanoTime() - start;
        }
        return count * 1e9 / time;
    }
}
