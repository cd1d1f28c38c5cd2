//! io_uring by system calls alone, one request at a time.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering::*};

use super::{Fd, Got};

const ENTRIES: u32 = 8;
const SUBMISSIONS: libc::off_t = 0;
const COMPLETIONS: libc::off_t = 0x800_0000;
const REQUESTS: libc::off_t = 0x1000_0000;

/// struct io_uring_sqe, as far as it is used.
#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Request {
    code: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    address: u64,
    length: u32,
    detail: u32,
    data: u64,
    rest: [u64; 3],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Completion {
    data: u64,
    result: i32,
    flags: u32,
}

/// struct io_uring_params, in words: where in the mappings is what.
#[repr(C)]
#[derive(Default)]
struct Parameters {
    entries: u32,
    completions: u32,
    other: [u32; 8],
    submission: Places,
    completion: Places,
}

#[repr(C)]
#[derive(Default)]
struct Places {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    words: [u32; 2],
    /// Of submissions.
    array: u32,
    more: [u32; 3],
}

/// Whose file a request is for.
#[derive(Clone, Copy)]
pub enum File {
    Descriptor(Fd),
    /// One of those given to [`IoUring::register`].
    Registered(i32),
}

/// Arguments of epoll_ctl(2).
#[derive(Clone, Copy)]
pub struct Change {
    pub operation: i32,
    pub fd: Fd,
    pub events: i32,
    pub data: u64,
}

/// Lives as long as the process, or until [`IoUring::close`].
pub struct IoUring {
    pub fd: Fd,
    /// It is entered by an instruction of ours, of which no library knows.
    pub unseen: bool,
    submissions: *mut u8,
    completions: *mut u8,
    requests: *mut Request,
    parameters: Parameters,
}

impl IoUring {
    /// Or why there is none: it can be forbidden (/proc/sys/kernel/io_uring_disabled).
    pub fn make() -> Result<IoUring, Got> {
        let mut parameters = Parameters::default();
        let got = call!(libc::syscall(libc::SYS_io_uring_setup, ENTRIES, &raw mut parameters));
        let Got::Value(fd) = got else { return Err(got) };
        let fd = fd as Fd;
        let map = |length: usize, at| {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping of the ring's descriptor.
            let place = unsafe { libc::mmap(null_mut(), length, access, libc::MAP_SHARED, fd, at) };
            assert_ne!(place, libc::MAP_FAILED, "mmap of an io_uring");
            place.cast::<u8>()
        };
        let submissions = parameters.submission.array as usize + parameters.entries as usize * 4;
        let events = parameters.completions as usize * size_of::<Completion>();
        // The offset of the events stands where the other has the flags.
        let completions = parameters.completion.words[1] as usize + events;
        Ok(IoUring {
            fd,
            unseen: false,
            submissions: map(submissions, SUBMISSIONS),
            completions: map(completions, COMPLETIONS),
            requests: map(parameters.entries as usize * size_of::<Request>(), REQUESTS).cast(),
            parameters,
        })
    }

    fn submission(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the kernel's offsets lie in the mapping, which stays.
        unsafe { &*self.submissions.add(offset as usize).cast() }
    }

    fn completion(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.completions.add(offset as usize).cast() }
    }

    fn carry_out(&self, file: File, request: Request) -> Got {
        const FIXED_FILE: u8 = 1;
        let (fd, flags) = match file {
            File::Descriptor(fd) => (fd, 0),
            File::Registered(index) => (index, FIXED_FILE),
        };
        self.put(Request { fd, flags, ..request });
        let got = self.enter(1);
        if got.count().is_none() {
            return got;
        }
        self.take()
    }

    /// Puts a request behind those that the kernel has not taken.
    fn put(&self, request: Request) {
        let to = &self.parameters.submission;
        let tail = self.submission(to.tail).load(Relaxed);
        let at = tail & self.submission(to.mask).load(Relaxed);
        // SAFETY: below the number of entries.
        unsafe { self.requests.add(at as usize).write(request) };
        self.submission(to.array + 4 * at).store(at, Relaxed);
        self.submission(to.tail).store(tail.wrapping_add(1), Release);
    }

    /// Has the kernel take `count` requests, and waits for as many answers.
    fn enter(&self, count: u32) -> Got {
        const GETEVENTS: u32 = 1;
        let none = std::ptr::null::<libc::c_void>();
        if self.unseen {
            let (number, ring) = (libc::SYS_io_uring_enter, self.fd);
            // SAFETY: there is no mask, and requests are those of the callers'.
            let got = unsafe { shunt_os::sys!(number, ring, count, count, GETEVENTS, 0, 0) };
            return got.map_or_else(|error| Got::Errno(error.0), |count| Got::Value(count as i64));
        }
        call!(libc::syscall(
            libc::SYS_io_uring_enter,
            self.fd,
            count,
            count,
            GETEVENTS,
            none,
            0usize
        ))
    }

    /// The next answer.
    fn take(&self) -> Got {
        let from = &self.parameters.completion;
        let head = self.completion(from.head).load(Relaxed);
        while self.completion(from.tail).load(Acquire) == head {
            std::thread::yield_now();
        }
        let at = head & self.completion(from.mask).load(Relaxed);
        // SAFETY: below the number of entries.
        let result = unsafe {
            let events = self.completions.add(from.words[1] as usize).cast::<Completion>();
            events.add(at as usize).read().result
        };
        self.completion(from.head).store(head.wrapping_add(1), Release);
        if result < 0 {
            Got::Errno(-result)
        } else {
            Got::Value(result.into())
        }
    }

    /// A request for nothing.
    pub fn nothing(&self) -> Got {
        self.carry_out(File::Descriptor(-1), Request::default())
    }

    /// epoll_ctl(2).
    pub fn control(&self, set: Fd, operation: i32, fd: Fd, events: i32, data: u64) -> Got {
        let change = Change { operation, fd, events, data };
        self.control_all(set, &[change])[0]
    }

    /// Several changes of a set, which the kernel takes together: eight at most.
    pub fn control_all(&self, set: Fd, changes: &[Change]) -> Vec<Got> {
        const EPOLL_CTL: u8 = 29;
        let event = |it: &Change| libc::epoll_event { events: it.events as u32, u64: it.data };
        let events: Vec<_> = changes.iter().map(event).collect();
        for (change, event) in changes.iter().zip(&events) {
            self.put(Request {
                code: EPOLL_CTL,
                fd: set,
                offset: change.fd as u32 as u64,
                address: std::ptr::from_ref(event) as usize as u64,
                length: change.operation as u32,
                ..Request::default()
            });
        }
        let got = self.enter(changes.len() as u32);
        changes.iter().map(|_| if got.count().is_some() { self.take() } else { got }).collect()
    }

    pub fn read(&self, file: File, room: &mut [u8]) -> Got {
        const READ: u8 = 22;
        let (address, length) = (room.as_mut_ptr() as usize as u64, room.len() as u32);
        let offset = u64::MAX;
        self.carry_out(file, Request { code: READ, address, length, offset, ..Request::default() })
    }

    pub fn recv(&self, file: File, room: &mut [u8]) -> Got {
        const RECV: u8 = 27;
        let (address, length) = (room.as_mut_ptr() as usize as u64, room.len() as u32);
        self.carry_out(file, Request { code: RECV, address, length, ..Request::default() })
    }

    pub fn send(&self, file: File, bytes: &[u8]) -> Got {
        const SEND: u8 = 26;
        let (address, length) = (bytes.as_ptr() as usize as u64, bytes.len() as u32);
        let detail = libc::MSG_NOSIGNAL as u32;
        self.carry_out(file, Request { code: SEND, address, length, detail, ..Request::default() })
    }

    /// The events that are there, once one of those asked for is.
    pub fn poll(&self, file: File, events: i16) -> Got {
        const POLL_ADD: u8 = 6;
        let detail = events as u16 as u32;
        self.carry_out(file, Request { code: POLL_ADD, detail, ..Request::default() })
    }

    pub fn accept(&self, file: File) -> Got {
        const ACCEPT: u8 = 13;
        self.carry_out(file, Request { code: ACCEPT, ..Request::default() })
    }

    pub fn register(&self, files: &[Fd]) -> Got {
        const REGISTER_FILES: u32 = 2;
        let (place, count) = (files.as_ptr(), files.len() as u32);
        call!(libc::syscall(libc::SYS_io_uring_register, self.fd, REGISTER_FILES, place, count))
    }

    /// The mappings hold the ring open as its descriptor does.
    pub fn close(self) -> Got {
        let (to, from) = (&self.parameters.submission, &self.parameters.completion);
        let submissions = to.array as usize + self.parameters.entries as usize * 4;
        let events = self.parameters.completions as usize * size_of::<Completion>();
        let requests = self.parameters.entries as usize * size_of::<Request>();
        // SAFETY: the mappings that `make` made, which nobody uses any more.
        unsafe {
            libc::munmap(self.submissions.cast(), submissions);
            libc::munmap(self.completions.cast(), from.words[1] as usize + events);
            libc::munmap(self.requests.cast(), requests);
        }
        super::socket::close(self.fd)
    }
}
