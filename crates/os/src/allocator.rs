//! The library's own memory. A signal handler of the program's may call close(2) or poll(2) where it has
//! interrupted malloc, and a program may bring a malloc of its own: so nothing of ours comes from there.
//!
//! Small blocks are of a power of two bytes and come from chunks; one that is given back is for the next
//! of its size, and its memory stays ours. Larger ones are mapped, and unmapped. Before the library's
//! start and in its last moments this is as at any other time: there is nothing to prepare or to end.
//!
//! Only the holder of the lock touches the lists, and no handler runs on its thread meanwhile. A thread
//! that forks holds the lock across the fork ([`hold`]), so that the child finds the lists whole; it may
//! go in again meanwhile.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{copy_nonoverlapping, null_mut, NonNull};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::lock::{Guard, Lock};
use crate::mapping::{self, Mapping};
use crate::{critical, threads};

const PAGE_BYTES: usize = 4096;
const CHUNK_BYTES: usize = 128 * 1024;
const SMALL_BYTES_MIN: usize = 16;
const SMALL_BYTES_MAX: usize = 32 * 1024;
/// 16, 32, and so on.
const CLASSES: usize = (SMALL_BYTES_MAX / SMALL_BYTES_MIN).ilog2() as usize + 1;

/// What a free block holds.
struct Free {
    next: *mut Free,
}

struct Heap {
    /// Of each class.
    free: [*mut Free; CLASSES],
    /// What is left of the chunk.
    rest: *mut u8,
    rest_bytes: usize,
}

// SAFETY: its memory is no thread's own.
unsafe impl Send for Heap {}

static HEAP: Lock<Heap> =
    Lock::new(Heap { free: [null_mut(); CLASSES], rest: null_mut(), rest_bytes: 0 });
/// The thread that holds the lock across a fork, as [`threads::name`] says, or 0.
static FORKING: AtomicUsize = AtomicUsize::new(0);

impl Heap {
    fn take(&mut self, class: usize) -> *mut u8 {
        if self.free[class].is_null() {
            self.grow(class);
        }
        let block = self.free[class];
        // SAFETY: what is in the list is free and of our chunks.
        if let Some(free) = unsafe { block.as_ref() } {
            self.free[class] = free.next;
        }
        block.cast()
    }

    fn give_back(&mut self, class: usize, block: *mut u8) {
        let free = block.cast::<Free>();
        // SAFETY: by the word of `dealloc`'s caller nobody uses the block; it is large enough.
        unsafe { free.write(Free { next: self.free[class] }) };
        self.free[class] = free;
    }

    /// Some blocks more, if there is memory: a page of them, or one.
    fn grow(&mut self, class: usize) {
        let block_bytes = SMALL_BYTES_MIN << class;
        let bytes = block_bytes.max(PAGE_BYTES);
        if self.rest_bytes < bytes {
            let Ok(chunk) = mapping::anonymous(CHUNK_BYTES) else { return };
            (self.rest, self.rest_bytes) = (chunk.base.as_ptr(), chunk.bytes);
        }
        for at in (0..bytes).step_by(block_bytes) {
            // SAFETY: within the rest of the chunk.
            let block = unsafe { self.rest.add(at) };
            self.give_back(class, block);
        }
        // SAFETY: as above.
        self.rest = unsafe { self.rest.add(bytes) };
        self.rest_bytes -= bytes;
    }
}

/// Works on the heap, as the only one.
fn with_heap<T>(work: impl FnOnce(&mut Heap) -> T) -> T {
    if !is_held_here() {
        return work(&mut HEAP.lock());
    }
    critical::enter();
    // SAFETY: this thread holds the lock, and is at none of its other uses, which no handler interrupts.
    let result = work(unsafe { &mut *HEAP.as_ptr() });
    critical::leave();
    result
}

/// Before a fork, by the thread that forks: no other changes the heap, until it is let go in both processes.
pub fn hold() {
    core::mem::forget(HEAP.lock());
    FORKING.store(threads::name(), Relaxed);
}

/// Whether this thread holds the heap across a fork.
#[inline]
pub fn is_held_here() -> bool {
    let forking = FORKING.load(Relaxed);
    forking != 0 && forking == threads::name()
}

/// Ends what [`hold`] began on this thread.
pub fn let_go() {
    if let Some(guard) = take_back() {
        drop(guard);
    }
}

/// As [`let_go`], in the child.
pub fn let_go_in_child() {
    if let Some(guard) = take_back() {
        guard.end_in_child();
    }
}

fn take_back() -> Option<Guard<'static, Heap>> {
    if !is_held_here() {
        return None;
    }
    FORKING.store(0, Relaxed);
    // SAFETY: this thread took the lock in `hold`, which keeps no proof.
    Some(unsafe { HEAP.held() })
}

/// The memory of whoever names it as its `#[global_allocator]`.
pub struct Allocator;

/// Which list, if the block is small; one of that many bytes is aligned to as many, up to a page.
fn class(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(SMALL_BYTES_MIN).next_power_of_two();
    (bytes <= SMALL_BYTES_MAX).then(|| (bytes / SMALL_BYTES_MIN).ilog2() as usize)
}

// SAFETY: a block is handed out once until it is given back, is as large as asked for (or null), and is
// aligned: to its own size or to a page.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > PAGE_BYTES {
            return null_mut();
        }
        match class(layout) {
            Some(class) => with_heap(|heap| heap.take(class)),
            None => mapping::anonymous(layout.size()).map_or(null_mut(), |it| it.base.as_ptr()),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match (class(layout), NonNull::new(block)) {
            (Some(class), _) => with_heap(|heap| heap.give_back(class, block)),
            // SAFETY: mapped by `alloc`, and nobody uses it any more.
            (None, Some(base)) => unsafe { mapping::unmap(Mapping { base, bytes: layout.size() }) },
            (None, None) => {}
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: by the caller's word it is a valid size for this alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        if class(layout).is_some() && class(layout) == class(wanted) {
            return block;
        }
        // SAFETY: by the caller's word.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: two blocks of at least so many bytes, the old one for the last time.
            unsafe {
                copy_nonoverlapping(block, moved, layout.size().min(bytes));
                self.dealloc(block, layout);
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests;
