//! Poll, select and epoll. Each stream is named by its slot in what is told.

use super::{fd_of, with_table, SETS};
use crate::operation::{PollCall, Register};
use crate::protocol::Reply;
use shunt_differential::calls::wait::{self, mask, Selection};
use shunt_differential::calls::{socket, Fd, Got};

pub fn poll(slots: &[u8], events: i16, call: PollCall) -> Reply {
    let set: Vec<(Fd, i16)> = slots.iter().map(|&slot| (fd_of(slot), events)).collect();
    let (got, answers) = match call {
        PollCall::Poll => wait::poll(&set, 0),
        PollCall::Ppoll => wait::ppoll(&set, 0, &[]),
        PollCall::Select => return select(slots),
    };
    let answers: Vec<String> = answers.into_iter().map(mask).collect();
    Reply::said(format!("{} {}", failure(got), answers.join(" ")))
}

/// Counts follow from the masks, and what is masked out of those would still be counted.
fn failure(got: Got) -> String {
    if got.count().is_some() {
        String::new()
    } else {
        got.to_string()
    }
}

/// In poll's words, so that both are compared in the same way.
fn select(slots: &[u8]) -> Reply {
    let mut answers = Vec::new();
    for &slot in slots {
        let fd = fd_of(slot);
        // FD_SET knows no larger numbers.
        if fd >= 1024 {
            answers.push("none".to_owned());
            continue;
        }
        let asked = Selection { read: vec![fd], write: vec![fd], except: vec![fd] };
        let said = wait::select(&asked, 0);
        let has = |what: &str| said.contains(&format!("{what} 1"));
        let words: Vec<&str> = [("read", "IN"), ("write", "OUT"), ("except", "PRI")]
            .into_iter()
            .filter(|(what, _)| has(what))
            .map(|(_, word)| word)
            .collect();
        answers.push(if words.is_empty() { "none".to_owned() } else { words.join("|") });
    }
    Reply::said(format!(" {}", answers.join(" ")))
}

pub fn await_readable(fd: Fd) -> Reply {
    let (got, answers) = wait::poll(&[(fd, libc::POLLIN)], -1);
    Reply::said(format!("{} {}", failure(got), mask(answers[0])))
}

pub fn await_epoll(fd: Fd, events: u32) -> Reply {
    let set = wait::epoll_create();
    let added = wait::epoll_add(set, fd, events as i32, 7);
    if added.count().is_none() {
        socket::close(set);
        return Reply::said(added);
    }
    let events = wait::epoll_wait(set, 4, -1);
    socket::close(set);
    Reply::said(events.said())
}

fn set_of(set: u8) -> Fd {
    with_table(|table| *table.sets[usize::from(set) % SETS].get_or_insert_with(wait::epoll_create))
}

pub fn control(set: u8, slot: u8, register: Register, events: u32) -> Reply {
    let operation = match register {
        Register::Add => libc::EPOLL_CTL_ADD,
        Register::Modify => libc::EPOLL_CTL_MOD,
        Register::Delete => libc::EPOLL_CTL_DEL,
    };
    let got = wait::epoll_ctl(set_of(set), operation, fd_of(slot), events as i32, slot.into());
    Reply::said(got)
}

pub fn wait_now(set: u8) -> Reply {
    Reply::said(wait::epoll_wait(set_of(set), 32, 0).said())
}

pub fn nest() -> Reply {
    Reply::said(wait::epoll_add(set_of(1), set_of(0), libc::EPOLLIN, 99))
}
