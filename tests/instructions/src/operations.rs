//! What is counted.

pub struct Operation {
    pub name: &'static str,
    /// It makes no more than so many.
    pub system_calls: u64,
}

const fn ring(name: &'static str, system_calls: u64) -> Operation {
    Operation { name, system_calls }
}

const fn kernel(name: &'static str) -> Operation {
    Operation { name, system_calls: 1 }
}

/// Their places are the numbers by which the subject marks them. In time, what is stepped through is slow: a
/// wait finds that the kernel is to be asked again, which it is once in 20 us.
pub const OPERATIONS: &[Operation] = &[
    ring("ring: send 8 bytes", 0),
    ring("ring: recv 8 bytes", 0),
    ring("ring: write 8 bytes", 0),
    ring("ring: read 8 bytes", 0),
    ring("ring: sendmsg 2 x 4 bytes", 0),
    ring("ring: send 1024 bytes", 0),
    ring("ring: poll, ready", 0),
    ring("ring: epoll_wait, ready", 1),
    ring("ring: message, epoll_wait, recv", 1),
    ring("ring: epoll_wait of no time, ready", 1),
    ring("ring: epoll_wait of no time, nothing ready", 2),
    ring("ring: recv, nothing there", 0),
    kernel("kernel: send 8 bytes"),
    kernel("kernel: recv 8 bytes"),
    kernel("kernel: epoll_wait, ready"),
    kernel("kernel: epoll_ctl MOD"),
    Operation { name: "kernel: epoll_ctl DEL and ADD", system_calls: 2 },
    kernel("no socket: read 8 bytes"),
    kernel("no socket: write 8 bytes"),
    kernel("no socket: epoll_wait of no time"),
    kernel("no socket: poll"),
    kernel("no socket: fcntl"),
];

/// By its name; a name that is not there is a mistake of the subject's.
pub fn number(name: &str) -> usize {
    let at = OPERATIONS.iter().position(|operation| operation.name == name);
    at.unwrap_or_else(|| panic!("{name} is no operation"))
}
