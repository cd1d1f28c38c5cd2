//! The requests of an io_uring(7) that the kernel has not taken yet: the queue that the program writes, mapped once
//! more. Layouts: linux/io_uring.h, io_uring_setup(2).

use core::mem::size_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::*};

use crate::mapping::{self, Mapping};
use crate::sys;

/// `opcode` of a request.
pub mod opcode {
    pub const NOP: u8 = 0;
    pub const READV: u8 = 1;
    pub const WRITEV: u8 = 2;
    pub const FSYNC: u8 = 3;
    pub const READ_FIXED: u8 = 4;
    pub const WRITE_FIXED: u8 = 5;
    pub const SYNC_FILE_RANGE: u8 = 8;
    pub const TIMEOUT: u8 = 11;
    pub const TIMEOUT_REMOVE: u8 = 12;
    pub const ASYNC_CANCEL: u8 = 14;
    pub const FALLOCATE: u8 = 17;
    pub const READ: u8 = 22;
    pub const WRITE: u8 = 23;
    pub const FADVISE: u8 = 24;
    pub const EPOLL_CTL: u8 = 29;
}

/// `flags` of a request: its `fd` is a place among registered files.
pub const FIXED_FILE: u8 = 1 << 0;
/// Another thread of the kernel's carries it out.
pub const ASYNC: u8 = 1 << 4;
/// It has no answer if it succeeds.
pub const QUIET: u8 = 1 << 6;

/// struct io_uring_sqe.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    pub opcode: u8,
    pub flags: u8,
    pub priority: u16,
    pub fd: i32,
    pub offset: u64,
    pub address: u64,
    pub length: u32,
    pub detail: u32,
    pub user_data: u64,
    pub buffer: u16,
    pub personality: u16,
    pub file: i32,
    pub rest: [u64; 2],
}

/// Flags of a ring whose requests are of 64 bytes, and are taken from the queue within io_uring_enter(2) alone:
/// CQSIZE, CLAMP, SUBMIT_ALL, COOP_TASKRUN, TASKRUN_FLAG, CQE32, SINGLE_ISSUER, DEFER_TASKRUN, NO_SQARRAY.
const PLAIN: u32 =
    1 << 3 | 1 << 4 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 11 | 1 << 12 | 1 << 13 | NO_ARRAY;
/// IORING_SETUP_NO_SQARRAY: requests are taken as they lie.
const NO_ARRAY: u32 = 1 << 16;

/// IORING_FEAT_EXT_ARG, since Linux 5.11: a wait with a limit needs no request.
const WAITS_WITH_LIMITS: u32 = 1 << 8;

/// Where mmap(2) has the queue, and the requests themselves.
const QUEUE: u64 = 0;
const REQUESTS: u64 = 0x1000_0000;

/// struct io_uring_params, by its words.
const PARAMETERS: usize = 30;
const ENTRIES: usize = 0;
const FLAGS: usize = 2;
const FEATURES: usize = 5;
const HEAD: usize = 10;
const TAIL: usize = 11;
const ARRAY: usize = 16;

pub struct Ring {
    queue: Mapping,
    requests: Mapping,
    entries: u32,
    /// Offsets in the queue.
    head: usize,
    tail: usize,
    array: Option<usize>,
}

impl Ring {
    /// Of the ring `fd` that io_uring_setup(2) has just made with `parameters`. `None` if the kernel may take a
    /// request before its program enters it, or if there is no memory. That requests are taken as they lie the
    /// program may promise beside.
    ///
    /// # Safety
    /// `parameters` is what that call filled in.
    pub unsafe fn of(fd: i32, parameters: *const u32, as_they_lie: bool) -> Option<Ring> {
        // SAFETY: by the caller's word.
        let words = unsafe { parameters.cast::<[u32; PARAMETERS]>().read_unaligned() };
        let entries = words[ENTRIES];
        let is_plain = words[FLAGS] & !PLAIN == 0 && words[FEATURES] & WAITS_WITH_LIMITS != 0;
        if !is_plain || !entries.is_power_of_two() {
            return None;
        }
        let has_array = words[FLAGS] & NO_ARRAY == 0 && !as_they_lie;
        let array = has_array.then_some(words[ARRAY] as usize);
        let (head, tail) = (words[HEAD] as usize, words[TAIL] as usize);
        let words_end = head.max(tail) + size_of::<u32>();
        let array_end = array.map_or(0, |at| at + entries as usize * size_of::<u32>());
        let queue = of_this_process(fd, QUEUE, words_end.max(array_end))?;
        let Some(requests) = of_this_process(fd, REQUESTS, entries as usize * size_of::<Request>())
        else {
            // SAFETY: nobody knows of it.
            unsafe { mapping::unmap(queue) };
            return None;
        };
        Some(Ring { queue, requests, entries, head, tail, array })
    }

    /// Gives up the mappings, which hold the ring open as its descriptor does.
    pub fn unmap(self) {
        // SAFETY: they are nobody else's.
        unsafe {
            mapping::unmap(self.queue);
            mapping::unmap(self.requests);
        }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the kernel's offsets lie in the mapping.
        unsafe { self.queue.base.add(offset).cast::<AtomicU32>().as_ref() }
    }

    /// How many requests there may be that the kernel has not taken.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// How many requests the kernel has taken, and the program has made; both wrap.
    pub fn counts(&self) -> (u32, u32) {
        (self.word(self.head).load(Acquire), self.word(self.tail).load(Acquire))
    }

    /// The place of the request that is taken when `taken` have been; `None` if the program names none.
    fn place(&self, taken: u32) -> Option<NonNull<Request>> {
        let at = taken & (self.entries - 1);
        let index = match self.array {
            Some(array) => self.word(array + at as usize * size_of::<u32>()).load(Relaxed),
            None => at,
        };
        // SAFETY: inside the mapping.
        (index < self.entries)
            .then(|| unsafe { self.requests.base.cast::<Request>().add(index as usize) })
    }

    /// The request that is taken when `taken` have been.
    pub fn request(&self, taken: u32) -> Option<Request> {
        // SAFETY: a place in the mapping, which any bytes may be in.
        self.place(taken).map(|place| unsafe { place.read_volatile() })
    }

    /// Puts another one in its place.
    pub fn replace(&self, taken: u32, request: Request) {
        if let Some(place) = self.place(taken) {
            // SAFETY: as above.
            unsafe { place.write_volatile(request) };
        }
    }
}

/// A mapping that forked children do not have.
fn of_this_process(fd: i32, offset: u64, bytes: usize) -> Option<Mapping> {
    let mapping = mapping::map_part(fd, offset, bytes).ok()?;
    // SAFETY: the range was just mapped.
    let kept = unsafe {
        sys!(libc::SYS_madvise, mapping.base.as_ptr(), mapping.bytes, libc::MADV_DONTFORK)
    };
    if kept.is_err() {
        // SAFETY: nobody knows of it.
        unsafe { mapping::unmap(mapping) };
        return None;
    }
    Some(mapping)
}

/// What answers a request that was carried out already: nothing, with `result` if the kernel can say it
/// (IORING_NOP_INJECT_RESULT, Linux 6.11).
pub fn carried_out(request: &Request, result: i32) -> Option<Request> {
    const INJECT_RESULT: u32 = 1;
    let Request { flags, user_data, personality, .. } = *request;
    let nothing =
        Request { opcode: opcode::NOP, flags, user_data, personality, ..Request::default() };
    match result {
        0 => Some(nothing),
        _ if crate::raw::kernel_is_at_least(6, 11) => {
            Some(Request { length: result as u32, detail: INJECT_RESULT, ..nothing })
        }
        _ => None,
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::handles;

    fn setup(flags: u32) -> Option<(i32, Option<Ring>)> {
        let mut parameters = [0u32; PARAMETERS];
        parameters[FLAGS] = flags;
        // SAFETY: what the call fills in.
        match unsafe { sys!(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) } {
            // SAFETY: it has been filled in.
            Ok(fd) => Some((fd as i32, unsafe { Ring::of(fd as i32, parameters.as_ptr(), false) })),
            Err(error) => {
                println!("io_uring is forbidden here ({error:?}): there is no ring to look at");
                None
            }
        }
    }

    #[test]
    fn requests_are_read_and_replaced_before_the_kernel_takes_them() {
        let Some((fd, ring)) = setup(0) else { return };
        let ring = ring.unwrap();
        assert_eq!((ring.entries(), ring.counts()), (4, (0, 0)));
        let asked = Request { opcode: 200, user_data: 7, ..Request::default() };
        ring.replace(0, asked);
        ring.word(ring.tail).store(1, Release);
        assert_eq!(ring.request(0).unwrap().opcode, 200);
        ring.replace(0, carried_out(&asked, 0).unwrap());
        // SAFETY: a request for nothing.
        let entered = unsafe { sys!(libc::SYS_io_uring_enter, fd, 1, 1, 1, 0, 0) };
        assert_eq!((entered, ring.counts()), (Ok(1), (1, 1)));
        ring.unmap();
        handles::close(fd);
    }

    #[test]
    fn rings_that_the_kernel_reads_by_itself_are_not_looked_at() {
        const SQPOLL: u32 = 1 << 1;
        let Some((fd, ring)) = setup(SQPOLL) else { return };
        assert!(ring.is_none());
        handles::close(fd);
    }
}
