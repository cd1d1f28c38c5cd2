//! The other end of the victim's streams: reads each to its end, and then writes until that fails.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use crate::frame::{frame, frames, Checker, BYTES, SURVIVOR, WRITERS};
use crate::page::{self, Page, Stream};
use crate::script::{Script, Survivor};

/// Between two looks at the page.
const PAUSE: Duration = Duration::from_micros(50);

pub fn run(script: &'static Script, page: i32) -> ExitCode {
    let page = page::map(page);
    std::thread::scope(|scope| {
        let serve = |stream: TcpStream, number: usize| {
            scope.spawn(move || serve(script.survivor, page, &page.streams[number], &stream))
        };
        if script.victim_accepts {
            while page.port.get() == 0 && page.is_dead.get() == 0 {
                std::thread::sleep(PAUSE);
            }
            let stream = TcpStream::connect(("127.0.0.1", page.port.get() as u16));
            page.is_connected.set(1);
            stream.into_iter().for_each(|stream| drop(serve(stream, 0)));
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        listener.set_nonblocking(true).expect("O_NONBLOCK");
        page.port.set(listener.local_addr().expect("it is bound").port().into());
        let mut number = 0;
        while number < script.streams {
            // Who died with a connection in the backlog is accepted all the same.
            let is_dead = page.is_dead.get() != 0;
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).expect("O_NONBLOCK");
                    serve(stream, number);
                    number += 1;
                }
                Err(_) if is_dead => break,
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    });
    ExitCode::SUCCESS
}

fn serve(kind: Survivor, page: &Page, words: &Stream, stream: &TcpStream) {
    // What a call has sent is at the victim's end: nothing waits for an acknowledgement.
    stream.set_nodelay(true).expect("TCP_NODELAY");
    std::thread::scope(|scope| {
        if kind == Survivor::Streams {
            scope.spawn(|| write_until_it_fails(words, stream));
        }
        read_to_end(kind, page, words, stream);
        if kind != Survivor::Streams {
            write_until_it_fails(words, stream);
        }
    });
}

fn read_to_end(kind: Survivor, page: &Page, words: &Stream, mut stream: &TcpStream) {
    let mut checker = Checker::default();
    let mut room = vec![0; 8192];
    let outcome = loop {
        while page.hold.get() != 0 {
            std::thread::sleep(PAUSE);
        }
        match stream.read(&mut room) {
            Ok(0) => break 0,
            Ok(count) => {
                let before: u64 = checker.counts.iter().sum();
                checker.take(&room[..count]);
                let frames = checker.counts.iter().sum::<u64>() - before;
                if kind == Survivor::Answers {
                    (0..frames).for_each(|_| drop(send(words, stream, 1)));
                }
            }
            Err(error) => break error.raw_os_error().unwrap_or(0),
        }
    };
    for writer in 0..WRITERS {
        words.got[writer].set(checker.counts[writer]);
    }
    words.child_before_victim.set(checker.child_before_victim * BYTES as u64);
    words.tail.set(checker.tail.len() as u64);
    words.is_wrong.set(u64::from(!checker.ends_well()));
    words.begun_before.set(words.begun[SURVIVOR].get());
    words.set_outcome(outcome);
}

/// So many of the survivor's next frames.
fn send(words: &Stream, mut stream: &TcpStream, count: u64) -> std::io::Result<()> {
    let from = words.begun[SURVIVOR].get() / BYTES as u64;
    let bytes =
        if count == 1 { frame(SURVIVOR, from).to_vec() } else { frames(SURVIVOR, from, count) };
    words.begun[SURVIVOR].add(bytes.len() as u64);
    stream.write_all(&bytes)?;
    words.done[SURVIVOR].add(bytes.len() as u64);
    Ok(())
}

fn write_until_it_fails(words: &Stream, stream: &TcpStream) {
    loop {
        if let Err(error) = send(words, stream, 100) {
            words.write_error.set(error.raw_os_error().unwrap_or(0) as u64);
            return;
        }
    }
}
