//! Fork, exec and the end of a process.

use super::{follow, with_table, Controls, Table, SETS, SLOTS};
use crate::protocol::Reply;
use shunt_differential::calls::{process, socket, Fd};

/// The child is an actor of its own, with copies of all slots.
pub fn fork() -> Reply {
    let controls = with_table(|table| table.controls);
    if controls.child < 0 {
        return Reply::said("no second child");
    }
    let alone = Controls { own: controls.child, thread: -1, child: -1, pass: controls.pass };
    process::fork(|| {
        socket::close(controls.own);
        if controls.thread >= 0 {
            socket::close(controls.thread);
        }
        with_table(|table| table.controls = alone);
        follow(alone.own)
    });
    socket::close(controls.child);
    with_table(|table| table.controls.child = -1);
    Reply::said("forked")
}

pub fn exit(at_once: bool) -> Reply {
    if at_once {
        process::exit_now(0);
    }
    std::process::exit(0)
}

/// Goes on as `--resume` with the same descriptors. Sets of epoll stay behind.
pub fn exec(with_library: bool) -> Reply {
    if !with_library {
        std::env::remove_var("LD_PRELOAD");
    }
    let table = with_table(|table| table.clone());
    if table.controls.thread >= 0 {
        socket::close(table.controls.thread);
    }
    for &set in table.sets.iter().flatten() {
        socket::close(set);
    }
    let slots: Vec<String> = table.slots.iter().map(number).collect();
    let Controls { own, child, pass, .. } = table.controls;
    let numbers = [own.to_string(), child.to_string(), pass.to_string(), number(&table.listener)];
    let mut arguments = vec!["/proc/self/exe", "--resume"];
    arguments.extend(numbers.iter().chain(&slots).map(String::as_str));
    Reply::said(process::exec(&arguments))
}

fn number(fd: &Option<Fd>) -> String {
    fd.unwrap_or(-1).to_string()
}

/// The table that [`exec`] wrote into the arguments.
pub fn resumed(arguments: &[String]) -> Option<Table> {
    let numbers: Vec<Fd> = arguments.iter().map_while(|text| text.parse().ok()).collect();
    let [own, child, pass, listener, slots @ ..] = numbers.as_slice() else { return None };
    // What was marked close-on-exec is gone.
    let known = |fd: Fd| socket::fcntl(fd, libc::F_GETFD, 0).count().map(|_| fd);
    let slots: [Fd; SLOTS] = slots.try_into().ok()?;
    Some(Table {
        slots: slots.map(known),
        sets: [None; SETS],
        listener: known(*listener),
        controls: Controls { own: *own, thread: -1, child: *child, pass: *pass },
    })
}
