// Answers every request with 1 KB. Argument: port.
const body = Buffer.alloc(1024, 'x');
const headers = { 'Content-Type': 'text/plain', 'Content-Length': body.length };

const server = require('http').createServer((request, response) => {
  response.writeHead(200, headers);
  response.end(body);
});
server.keepAliveTimeout = 0;
server.listen(Number(process.argv[2]), '127.0.0.1');
