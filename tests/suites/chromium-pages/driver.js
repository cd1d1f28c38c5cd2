'use strict';
// Serves a page to a browser, which it starts, and prints what the page reports; then drives the browser by DevTools.
const crypto = require('crypto');
const { spawn } = require('child_process');
const fs = require('fs');
const http = require('http');
const https = require('https');
const { WebSocket, WebSocketServer } = require(process.env.WS_MODULE);

const [kind, key, certificate, profile, browser, ...flags] = process.argv.slice(2);
const page = fs.readFileSync(`${__dirname}/page.html`);

function bytes(count) {
  const block = crypto.createHash('sha512').update('block').digest();
  const whole = Buffer.alloc(count);
  for (let at = 0; at < count; at += block.length) block.copy(whole, at, 0, Math.min(block.length, count - at));
  return whole;
}

function serve(request, response) {
  const url = new URL(request.url, 'http://127.0.0.1');
  const count = Number(url.searchParams.get('n') || 0);
  if (url.pathname === '/') {
    response.setHeader('content-type', 'text/html');
    response.end(page);
  } else if (url.pathname === '/bytes') {
    const data = bytes(count);
    response.setHeader('content-length', data.length);
    response.end(data);
  } else if (url.pathname === '/drip') {
    let left = count;
    const timer = setInterval(() => {
      response.write(`${left}\n`);
      if (--left === 0) { clearInterval(timer); response.end(); }
    }, 5);
    response.on('close', () => clearInterval(timer));
  } else if (url.pathname === '/cut') {
    response.setHeader('content-length', count);
    response.write(bytes(count / 2));
    setTimeout(() => request.socket.destroy(), 50);
  } else if (url.pathname === '/reset') {
    // TLS has no reset of its own.
    if (kind === 'http') request.socket.resetAndDestroy(); else request.socket.destroy();
  } else if (url.pathname === '/events') {
    response.setHeader('content-type', 'text/event-stream');
    let sent = 0;
    const timer = setInterval(() => {
      response.write(`data: ${sent}\n\n`);
      if (++sent === count) clearInterval(timer);
    }, 2);
    response.on('close', () => clearInterval(timer));
  } else if (url.pathname === '/upload') {
    const hash = crypto.createHash('sha256');
    let length = 0;
    request.on('data', (data) => { hash.update(data); length += data.length; });
    request.on('end', () => response.end(`${length} ${hash.digest('hex')}`));
  } else if (url.pathname === '/done') {
    let told = '';
    request.on('data', (data) => { told += data; });
    request.on('end', () => { response.end(); finish(told); });
  } else {
    response.statusCode = 404;
    response.end();
  }
}

const options = kind === 'https' && { key: fs.readFileSync(key), cert: fs.readFileSync(certificate) };
const server = kind === 'http' ? http.createServer(serve)
  : https.createServer(options, serve);
new WebSocketServer({ server, path: '/echo', maxPayload: 64 << 20 }).on('connection', (socket) => {
  socket.on('message', (data, binary) => {
    if (!binary && data.toString() === 'terminate') socket.terminate();
    else socket.send(data, { binary });
  });
});

let child;
server.listen(0, '127.0.0.1', () => {
  const url = `${kind === 'http' ? 'http' : 'https'}://127.0.0.1:${server.address().port}/`;
  child = spawn(browser, [...flags, '--headless', '--disable-gpu', '--remote-debugging-port=9222', '--ignore-certificate-errors',
    `--user-data-dir=${profile}`, url], { stdio: ['ignore', 'inherit', 'inherit'] });
  child.on('exit', (code, signal) => console.log(`browser ended ${code} ${signal}`));
});

async function finish(told) {
  console.log(told);
  for (const line of await devtools()) console.log(line);
  await new Promise((resolve) => { child.on('exit', resolve); });
  process.exit(0);
}

// By DevTools: an evaluation, a page as a picture, and the browser's end.
async function devtools() {
  const lines = [];
  const targets = await (await fetch('http://127.0.0.1:9222/json/list')).json();
  lines.push(`case targets: ${targets.filter((target) => target.type === 'page').length}`);
  const socket = new WebSocket(targets.find((target) => target.type === 'page').webSocketDebuggerUrl, { perMessageDeflate: false });
  await new Promise((resolve, reject) => { socket.on('open', resolve); socket.on('error', reject); });
  let last = 0;
  const waiting = new Map();
  socket.on('message', (data) => {
    const answer = JSON.parse(data);
    if (waiting.has(answer.id)) waiting.get(answer.id)(answer.result);
  });
  const ask = (method, params = {}) => new Promise((resolve) => {
    waiting.set(++last, resolve);
    socket.send(JSON.stringify({ id: last, method, params }));
  });
  let sum = 0;
  for (let turn = 0; turn < 300; turn++) sum += (await ask('Runtime.evaluate', { expression: `${turn} * 2` })).result.value;
  lines.push(`case evaluated: ${sum}`);
  const large = await ask('Runtime.evaluate', { expression: "'x'.repeat(5000000)", returnByValue: true });
  lines.push(`case large answer: ${large.result.value.length}`);
  const picture = await ask('Page.captureScreenshot');
  lines.push(`case picture: ${picture.data.length > 1000}`);
  ask('Browser.close');
  return lines;
}
