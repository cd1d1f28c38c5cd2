//! What victim and survivor note for the judge, in memory that outlives both.
#![allow(unsafe_code)] // UNSAFETY: a page that processes share.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::frame::WRITERS;

pub const STREAMS: usize = 2;

/// A word that one process writes and others read.
#[derive(Default)]
pub struct Word(AtomicU64);

impl Word {
    pub fn get(&self) -> u64 {
        self.0.load(SeqCst)
    }

    pub fn set(&self, value: u64) {
        self.0.store(value, SeqCst);
    }

    pub fn add(&self, value: u64) {
        self.0.fetch_add(value, SeqCst);
    }
}

/// Counts are of bytes.
#[derive(Default)]
pub struct Page {
    /// Where to connect to; 0 while nobody listens.
    pub port: Word,
    /// The survivor's connect has returned.
    pub is_connected: Word,
    /// The survivor does not read meanwhile.
    pub hold: Word,
    /// The victim has come to its end.
    pub is_dead: Word,
    /// Somebody at the victim's end got what the survivor did not write.
    pub victim_read_wrong: Word,
    pub child_began: Word,
    pub child_finished: Word,
    pub streams: [Stream; STREAMS],
}

#[derive(Default)]
pub struct Stream {
    /// Of each writer: what it has asked to be sent, and what calls that have returned took.
    pub begun: [Word; WRITERS],
    pub done: [Word; WRITERS],
    /// What reads at the victim's end have returned, and what they may have taken at most.
    pub taken: Word,
    pub taken_at_most: Word,
    /// The victim has begun to end its direction.
    pub shut: Word,
    /// It is giving the stream to a child, another program or the kernel: what it has not read is on its way
    /// there, and its death may be told as an end in place of a reset.
    pub moving: Word,
    /// What the child had written when the victim was dead or had ended for sure, and one more; 0 before that.
    pub alone_from: Word,
    /// What of the child's had come to the survivor before the victim's last.
    pub child_before_victim: Word,
    /// Of each writer, in whole frames, at the survivor.
    pub got: [Word; WRITERS],
    /// Whether bytes of one more frame came.
    pub tail: Word,
    pub is_wrong: Word,
    /// See [`Outcome`].
    pub outcome: Word,
    /// What the survivor had asked to be sent by then.
    pub begun_before: Word,
    /// The errno that ended the survivor's writing.
    pub write_error: Word,
}

/// What the survivor's reading ended with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    None,
    End,
    Error(i32),
}

impl Stream {
    pub fn outcome(&self) -> Outcome {
        match self.outcome.get() {
            0 => Outcome::None,
            1 => Outcome::End,
            error => Outcome::Error(error as i32 - 1),
        }
    }

    pub fn set_outcome(&self, errno: i32) {
        self.outcome.set(errno as u64 + 1);
    }
}

/// A new page and its descriptor, which programs that are started inherit.
pub fn make() -> (&'static Page, i32) {
    // SAFETY: a name.
    let fd = unsafe { libc::memfd_create(c"page".as_ptr(), 0) };
    // SAFETY: no pointers.
    let sized = unsafe { libc::ftruncate(fd, size_of::<Page>() as libc::off_t) };
    assert_eq!(sized, 0, "memfd: {}", std::io::Error::last_os_error());
    (map(fd), fd)
}

/// The page behind a descriptor.
pub fn map(fd: i32) -> &'static Page {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of the file's length, which is never taken away; zeroes are a page.
    unsafe {
        let page =
            libc::mmap(std::ptr::null_mut(), size_of::<Page>(), access, libc::MAP_SHARED, fd, 0);
        assert_ne!(page, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        &*page.cast::<Page>()
    }
}

/// When nobody uses it any more.
pub fn unmap(page: &'static Page, fd: i32) {
    // SAFETY: the mapping and the descriptor that `make` made.
    unsafe {
        libc::munmap(std::ptr::from_ref(page).cast_mut().cast(), size_of::<Page>());
        libc::close(fd);
    }
}
