//! The streams that a set has something to tell of, perhaps, in the order in which it is told.

use std::collections::VecDeque;

/// How a stream came into the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Nothing is known to have happened: the program has just asked for it.
    Look,
    /// It was told last time, and keeps its place, as in the kernel, unless nothing is there any more.
    Again,
    /// What the kernel tells of by other descriptors came later, as far as is known.
    First,
    /// Whoever marked the stream had done before what the kernel tells of: the kernel is asked first.
    AfterKernel,
}

/// A place in the queue. A stream that only waits for a look and is marked gets another one; nobody
/// is in the one that it had.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Place {
    number: u32,
    cause: Cause,
}

impl Place {
    /// Whether somebody who stands here is to go to the end for this.
    pub fn yields_to(self, cause: Cause) -> bool {
        self.cause == Cause::Look && cause != Cause::Look
    }
}

/// Who stands in a place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nobody any more.
    Gone,
    /// A stream whose bytes come by TCP: the kernel says when they came, by our tag.
    ByKernel,
    /// One whose bytes come by a ring.
    ByRing,
}

/// The first of a queue: in how many places, and how many streams that are.
#[derive(Clone, Copy, Default)]
pub struct First {
    pub places: usize,
    pub streams: usize,
}

/// By descriptor.
#[derive(Default)]
pub struct Queue {
    waiting: VecDeque<(i32, Place)>,
    number: u32,
}

impl Queue {
    pub fn push(&mut self, fd: i32, cause: Cause) -> Place {
        self.number = self.number.wrapping_add(1);
        let place = Place { number: self.number, cause };
        self.waiting.push_back((fd, place));
        place
    }

    pub fn pop(&mut self) -> Option<(i32, Place)> {
        self.waiting.pop_front()
    }

    /// The moment of the last that came in.
    pub fn newest(&self) -> u32 {
        self.number
    }

    /// As [`pop`](Self::pop), unless the first came in after this moment.
    pub fn pop_until(&mut self, moment: u32) -> Option<(i32, Place)> {
        self.waiting.pop_front_if(|(_, place)| (place.number.wrapping_sub(moment) as i32) <= 0)
    }

    pub fn remove(&mut self, fd: i32) {
        self.waiting.retain(|(waits, _)| *waits != fd);
    }

    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Those from `start` on that can be told before what the kernel tells.
    pub fn first_from(&self, start: usize, standing: impl Fn(i32, Place) -> Standing) -> First {
        let mut first = First::default();
        for &(fd, place) in self.waiting.iter().skip(start) {
            match (place.cause, standing(fd, place)) {
                (_, Standing::Gone) => {}
                (Cause::AfterKernel, _) | (Cause::Look, Standing::ByKernel) => break,
                _ => first.streams += 1,
            }
            first.places += 1;
        }
        first
    }

    /// Whether the kernel is to be asked before the last is told.
    pub fn has_after_kernel(&self) -> bool {
        self.waiting.iter().any(|(_, place)| place.cause == Cause::AfterKernel)
    }

    /// What was put in from `middle` on comes to stand at `start`, before what was there.
    pub fn advance(&mut self, start: usize, middle: usize) {
        self.swap(start, middle, self.len());
    }

    /// The streams from `start` to `middle` and those from there to `end` change places. The queue may
    /// be shorter by now.
    pub fn swap(&mut self, start: usize, middle: usize, end: usize) {
        let end = end.min(self.len());
        if start < middle && middle < end {
            self.waiting.make_contiguous()[start..end].rotate_left(middle - start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cause::*;
    use super::{Cause, Queue, Standing};

    fn queue(causes: &[Cause]) -> Queue {
        let mut queue = Queue::default();
        (0..).zip(causes).for_each(|(fd, cause)| _ = queue.push(fd, *cause));
        queue
    }

    fn all(mut queue: Queue) -> Vec<i32> {
        core::iter::from_fn(|| queue.pop()).map(|(fd, _)| fd).collect()
    }

    #[test]
    fn the_first_end_where_one_waits_for_the_kernel() {
        let queue = queue(&[Look, Again, AfterKernel, First]);
        let places = |start| queue.first_from(start, |_, _| Standing::ByRing).places;
        assert_eq!([0, 1, 2, 3].map(places), [2, 1, 0, 1]);
        let by_kernel = |_, _| Standing::ByKernel;
        assert_eq!([0, 1, 3].map(|start| queue.first_from(start, by_kernel).places), [0, 1, 1]);
        assert!(queue.has_after_kernel());
    }

    #[test]
    fn a_place_where_nobody_stands_holds_nobody_up() {
        let queue = queue(&[Look, AfterKernel, First]);
        let gone = |fd, _| if fd == 1 { Standing::Gone } else { Standing::ByRing };
        let first = queue.first_from(0, gone);
        assert_eq!((first.places, first.streams), (3, 2));
    }

    #[test]
    fn what_the_kernel_named_comes_behind_the_first() {
        let mut queue = queue(&[First, AfterKernel, First, First]);
        queue.advance(1, 2);
        assert_eq!(all(queue), [0, 2, 3, 1]);
    }

    #[test]
    fn a_queue_that_became_shorter_is_left_as_it_is() {
        let mut short = queue(&[First, First]);
        short.swap(0, 3, 5);
        short.swap(1, 2, 4);
        assert_eq!(all(short), [0, 1]);
    }

    #[test]
    fn who_comes_in_later_is_not_reached_when_another_goes() {
        let mut queue = queue(&[First, First]);
        let newest = queue.newest();
        assert_eq!(queue.pop_until(newest).map(|(fd, _)| fd), Some(0));
        queue.push(0, Again);
        queue.remove(1);
        assert!(queue.pop_until(newest).is_none());
        assert_eq!(all(queue), [0]);
    }

    #[test]
    fn who_is_removed_is_not_told_of() {
        let mut queue = queue(&[First, AfterKernel, First]);
        queue.remove(1);
        assert_eq!((queue.len(), queue.has_after_kernel()), (2, false));
        assert_eq!(all(queue), [0, 2]);
    }
}
