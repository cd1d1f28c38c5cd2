//! Descriptor to what we know of it: one load and a mask on the way of every call.
//!
//! Two levels, the second made on demand, so that a huge RLIMIT_NOFILE costs nothing. An entry is
//! a tag and an index; `Unknown` means that nobody has asked the kernel yet what it is.

// UNSAFETY: pages of the table are mapped once and never unmapped.
#![allow(unsafe_code)]

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::*};

use shunt_os::mapping;

use crate::process;

const PAGE_ENTRIES: usize = 4096;
const PAGES: usize = 1024;

/// What a descriptor is, as far as we know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Not looked at yet.
    Unknown,
    /// Nothing of ours: every call passes through.
    Foreign,
    /// A TCP socket, by its index in the socket pool.
    Socket(u32),
    /// An epoll set, by its index in the pool of sets.
    Set(u32),
    /// An io_uring whose requests are looked at, by its index among these.
    Uring(u32),
}

const TAG_BITS: u32 = 3;
const TAGS: u32 = 3;
const FOREIGN: u32 = 1;
const SOCKET: u32 = 2;
/// Of a socket's entry: a child of vfork, which has descriptors of its own and this memory, has closed the number. What
/// it names there since is not known, until the parent uses it again.
const CLOSED_IN_CHILD: u32 = 4;

impl Entry {
    fn pack(self) -> u32 {
        match self {
            Entry::Unknown => 0,
            Entry::Foreign => FOREIGN,
            Entry::Socket(index) => index << TAG_BITS | SOCKET,
            Entry::Set(index) => index << TAG_BITS | 3,
            Entry::Uring(index) => (index + 1) << TAG_BITS | FOREIGN,
        }
    }

    #[inline]
    fn unpack(word: u32) -> Entry {
        match word & TAGS {
            0 => Entry::Unknown,
            FOREIGN if word == FOREIGN => Entry::Foreign,
            FOREIGN => Entry::Uring((word >> TAG_BITS) - 1),
            SOCKET => Entry::Socket(word >> TAG_BITS),
            _ => Entry::Set(word >> TAG_BITS),
        }
    }
}

struct Page([AtomicU32; PAGE_ENTRIES]);

static TABLE: [AtomicPtr<Page>; PAGES] = [const { AtomicPtr::new(null_mut()) }; PAGES];
/// Whether there has been an entry of a socket or a set.
static HAS_HAD_SOME: AtomicBool = AtomicBool::new(false);

/// Whether this process has never had a socket or an epoll set of which we know: lists of descriptors need not be
/// looked at.
#[inline]
pub fn has_had_none() -> bool {
    !HAS_HAD_SOME.load(Acquire)
}

#[inline(always)]
fn place(fd: i32) -> Option<&'static AtomicU32> {
    // A negative number becomes a huge one and finds no page.
    let fd = fd as u32 as usize;
    let page = TABLE.get(fd / PAGE_ENTRIES)?.load(Acquire);
    if page.is_null() {
        return None;
    }
    // SAFETY: a published page stays mapped for ever.
    Some(unsafe { &(&(*page).0)[fd % PAGE_ENTRIES] })
}

/// What `fd` is. Numbers without an entry are unknown.
#[inline]
pub fn get(fd: i32) -> Entry {
    match place(fd) {
        Some(word) => Entry::unpack(word.load(Acquire)),
        None if (fd as u32 as usize) < PAGES * PAGE_ENTRIES => Entry::Unknown,
        None => Entry::Foreign,
    }
}

/// The caller, a child of vfork, has closed the number, and its parent has not. Calls that move bytes know of it
/// ([`socket`]).
pub fn close_in_child(fd: i32) {
    if let Some(place) = place(fd).filter(|place| place.load(Acquire) & TAGS == SOCKET) {
        place.fetch_or(CLOSED_IN_CHILD, AcqRel);
    }
}

/// Such a number: nothing of ours to the child, what it was to its parent.
#[cold]
#[inline(never)]
fn whose(place: &AtomicU32, word: u32) -> Option<u32> {
    if process::in_vfork_child() {
        return None;
    }
    let _ = place.compare_exchange(word, word & !CLOSED_IN_CHILD, AcqRel, Relaxed);
    Some(word >> TAG_BITS)
}

/// A descriptor that was a socket when it was looked up.
#[derive(Clone, Copy)]
pub struct Named {
    place: &'static AtomicU32,
    word: u32,
}

impl Named {
    /// The socket's index.
    #[inline(always)]
    pub fn index(self) -> u32 {
        self.word >> TAG_BITS
    }

    /// Whether the descriptor names the same place still.
    #[inline(always)]
    pub fn is_still(self) -> bool {
        self.place.load(Acquire) == self.word
    }
}

/// The socket that `fd` is, if it is one for sure.
#[inline(always)]
pub fn named(fd: i32) -> Option<Named> {
    let place = place(fd)?;
    let word = place.load(Acquire);
    (word & (TAGS | CLOSED_IN_CHILD) == SOCKET).then_some(Named { place, word })
}

/// The index of the socket that `fd` is, if it is one.
#[inline(always)]
pub fn socket(fd: i32) -> Option<u32> {
    let place = place(fd)?;
    let word = place.load(Acquire);
    if word & TAGS != SOCKET {
        return None;
    }
    match word & CLOSED_IN_CHILD {
        0 => Some(word >> TAG_BITS),
        _ => whose(place, word),
    }
}

/// Sets what `fd` is and returns what it was. Numbers beyond the table (4 million) stay foreign.
pub fn set(fd: i32, entry: Entry) -> Entry {
    if matches!(entry, Entry::Socket(_) | Entry::Set(_)) && has_had_none() {
        HAS_HAD_SOME.store(true, Release);
    }
    if let Some(word) = place(fd) {
        return Entry::unpack(word.swap(entry.pack(), AcqRel));
    }
    let Some(slot) = TABLE.get(fd as u32 as usize / PAGE_ENTRIES) else { return Entry::Foreign };
    if entry == Entry::Unknown {
        return Entry::Unknown;
    }
    let Ok(fresh) = mapping::anonymous(core::mem::size_of::<Page>()) else { return Entry::Foreign };
    let fresh_page = fresh.base.as_ptr().cast::<Page>();
    if slot.compare_exchange(null_mut(), fresh_page, AcqRel, Acquire).is_err() {
        // SAFETY: another thread's page won; nobody has seen this one.
        unsafe { mapping::unmap(fresh) };
    }
    place(fd).map_or(Entry::Foreign, |word| Entry::unpack(word.swap(entry.pack(), AcqRel)))
}

/// Every descriptor from `first` to `last` that has an entry of its own, lowest first.
pub fn each(first: u32, last: u32, mut visit: impl FnMut(i32, Entry)) {
    for (number, slot) in TABLE.iter().enumerate() {
        let page = slot.load(Acquire);
        let start = number * PAGE_ENTRIES;
        if page.is_null() || start > last as usize || start + PAGE_ENTRIES <= first as usize {
            continue;
        }
        // SAFETY: a published page stays mapped for ever.
        for (at, word) in unsafe { &(*page).0 }.iter().enumerate() {
            let fd = start + at;
            let value = word.load(Acquire);
            if value != 0 && fd >= first as usize && fd <= last as usize {
                visit(fd as i32, Entry::unpack(value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_kept_by_number_and_strange_numbers_are_foreign() {
        assert_eq!(get(70_000), Entry::Unknown);
        assert_eq!(set(70_000, Entry::Socket(5)), Entry::Unknown);
        assert_eq!(get(70_000), Entry::Socket(5));
        assert_eq!(set(70_000, Entry::Uring(0)), Entry::Socket(5));
        assert_eq!(set(70_000, Entry::Set(9)), Entry::Uring(0));
        assert_eq!(get(-1), Entry::Foreign);
        assert_eq!(get(i32::MAX), Entry::Foreign);
        assert_eq!(set(i32::MAX, Entry::Socket(1)), Entry::Foreign);
        let mut seen = Vec::new();
        each(69_000, 71_000, |fd, entry| seen.push((fd, entry)));
        assert_eq!(seen, [(70_000, Entry::Set(9))]);
        set(70_000, Entry::Unknown);
    }
}
