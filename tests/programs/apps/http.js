// http.js serve PORT | ask PORT: an HTTP server that echoes bodies, and clients that check them.
'use strict';
const http = require('http');
const crypto = require('crypto');
const [action, port] = process.argv.slice(2);

function serve() {
  http.createServer((request, response) => {
    response.writeHead(200, { 'Content-Type': 'application/octet-stream' });
    request.pipe(response);
  }).listen(Number(port), '127.0.0.1');
}

function content(seed, size) {
  const block = crypto.createHash('sha512').update(String(seed)).digest();
  return Buffer.alloc(size, block);
}

function post(agent, body) {
  return new Promise((resolve, reject) => {
    const request = http.request({ agent, port, host: '127.0.0.1', method: 'POST' }, (response) => {
      const pieces = [];
      response.on('data', (piece) => pieces.push(piece));
      response.on('end', () => resolve(Buffer.concat(pieces)));
    });
    request.on('error', reject);
    request.end(body);
  });
}

async function ask() {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 10 });
  const one = async (seed) => {
    const body = content(seed, seed % 10 === 0 ? 500000 : 100 + seed);
    if (!(await post(agent, body)).equals(body)) throw new Error(`answer ${seed} is wrong`);
  };
  for (let round = 0; round < 20; round++) {
    await Promise.all(Array.from({ length: 20 }, (_, index) => one(round * 20 + index)));
  }
  agent.destroy();
  console.log('all answers right');
}

if (action === 'serve') serve();
else ask();
