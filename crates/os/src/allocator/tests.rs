//! Operations at random against what was asked for: alone, among threads, across forks.

use super::*;

/// Numbers that look random (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    fn layout(&mut self) -> Layout {
        let magnitude = self.below(15);
        let bytes = 1 + self.below(8 << magnitude);
        Layout::from_size_align(bytes, 1 << self.below(13)).unwrap()
    }
}

/// A block and the byte that is everywhere in it.
struct Block(*mut u8, Layout, u8);

impl Block {
    fn new(layout: Layout, byte: u8) -> Block {
        // SAFETY: no layout is of no bytes.
        let base = unsafe { Allocator.alloc(layout) };
        assert!(
            !base.is_null() && (base as usize).is_multiple_of(layout.align()),
            "{base:?} {layout:?}"
        );
        // SAFETY: the block is as large.
        unsafe { base.write_bytes(byte, layout.size()) };
        Block(base, layout, byte)
    }

    fn holds(&self, bytes: usize) -> bool {
        // SAFETY: written when it was made.
        unsafe { core::slice::from_raw_parts(self.0, bytes) }.iter().all(|byte| *byte == self.2)
    }

    fn resized(self, bytes: usize) -> Block {
        // SAFETY: a block of this layout.
        let base = unsafe { Allocator.realloc(self.0, self.1, bytes) };
        let layout = Layout::from_size_align(bytes, self.1.align()).unwrap();
        assert!(
            !base.is_null() && (base as usize).is_multiple_of(layout.align()),
            "{base:?} {layout:?}"
        );
        let moved = Block(base, layout, self.2);
        assert!(moved.holds(bytes.min(self.1.size())), "bytes lost in a realloc");
        // SAFETY: the block is as large.
        unsafe { base.write_bytes(self.2, bytes) };
        moved
    }

    fn end(self) {
        assert!(self.holds(self.1.size()), "another block's bytes");
        // SAFETY: used for the last time.
        unsafe { Allocator.dealloc(self.0, self.1) };
    }
}

fn use_at_random(seed: u64, turns: usize) {
    let (mut dice, mut blocks) = (Dice(seed), Vec::<Block>::new());
    for turn in 0..turns {
        match dice.below(if blocks.len() > 60 { 3 } else { 5 }) {
            0 | 1 if !blocks.is_empty() => blocks.swap_remove(dice.below(blocks.len())).end(),
            2 if !blocks.is_empty() => {
                let block = blocks.swap_remove(dice.below(blocks.len()));
                let bytes = dice.layout().size();
                blocks.push(block.resized(bytes));
            }
            _ => blocks.push(Block::new(dice.layout(), turn as u8)),
        }
    }
    blocks.into_iter().for_each(Block::end);
}

#[test]
fn blocks_keep_their_bytes_and_their_alignment() {
    use_at_random(88_172_645_463_325_252, 20_000);
}

#[test]
fn threads_do_not_share_blocks() {
    let thread = |seed| std::thread::spawn(move || use_at_random(seed, 10_000));
    let threads: Vec<_> = (1..5).map(thread).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_block_that_was_given_back_is_used_again() {
    let layout = Layout::from_size_align(3000, 8).unwrap();
    let places: std::collections::HashSet<_> = (0..1000)
        .map(|_| {
            let block = Block::new(layout, 1);
            let place = block.0 as usize;
            block.end();
            place
        })
        .collect();
    assert!(places.len() < 100, "{} places", places.len());
}

#[test]
fn a_child_forked_among_busy_threads_finds_the_heap_whole() {
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut failed = 0;
    std::thread::scope(|scope| {
        for seed in 1..4 {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    use_at_random(seed, 100);
                }
            });
        }
        for _ in 0..200 {
            hold();
            // While it is held, its thread goes in all the same.
            Block::new(Layout::new::<u64>(), 1).end();
            // SAFETY: the child uses what is tested here, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let_go_in_child();
                // SAFETY: an alarm ends a child that waits for ever.
                unsafe { libc::alarm(10) };
                let layout = |class: usize| Layout::from_size_align(16 << class, 8).unwrap();
                for _ in 0..20 {
                    (0..CLASSES).map(|class| Block::new(layout(class), 7)).for_each(|block| {
                        // SAFETY: as in `end`; a panic here would be the parent's.
                        unsafe { Allocator.dealloc(block.0, block.1) }
                    });
                }
                crate::raw::exit(0);
            }
            let_go();
            let mut status = -1;
            // SAFETY: a place for the status.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            failed = status;
            if failed != 0 {
                break;
            }
        }
        stop.store(true, Relaxed);
    });
    assert_eq!(failed, 0);
}
