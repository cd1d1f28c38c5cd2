//! Lists of descriptors (/proc/self/fd and its like, proc(5)), which programs make to count what they have
//! open, or to close it: they do not show ours.
//!
//! A folder is looked at only when an entry of it has a number of ours for a name; to read any other costs a
//! few instructions an entry. Nothing is allocated and no lock taken: a child of vfork may call this, and a
//! handler.

// UNSAFETY: reads and writes the records of folders, in the program's memory.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_void, CStr};
use core::mem::offset_of;
use core::slice;

use libc::{dirent, dirent64, DIR};
use shunt_os::{handles, proc};

use crate::process;

/// How a call lays out an entry of a folder.
#[derive(Clone, Copy)]
pub struct Form {
    length_at: usize,
    name_at: usize,
}

/// `struct dirent`.
pub const PLAIN: Form =
    Form { length_at: offset_of!(dirent, d_reclen), name_at: offset_of!(dirent, d_name) };
/// `struct dirent64`, and the kernel's own of getdents64(2).
pub const WIDE: Form =
    Form { length_at: offset_of!(dirent64, d_reclen), name_at: offset_of!(dirent64, d_name) };
/// The kernel's of getdents(2): two longs, the length, the name.
pub const OLD: Form =
    Form { length_at: 2 * size_of::<usize>(), name_at: 2 * size_of::<usize>() + 2 };

/// The first of the entries that `next` gives which is none of ours; null at their end.
///
/// # Safety
/// They are entries of this form, and the folder's.
#[inline]
pub unsafe fn shown<E>(folder: *mut DIR, form: Form, mut next: impl FnMut() -> *mut E) -> *mut E {
    loop {
        let entry = next();
        // SAFETY: by the caller's word.
        if entry.is_null() || !unsafe { is_hidden(folder, entry.byte_add(form.name_at).cast()) } {
            return entry;
        }
    }
}

#[inline]
unsafe fn is_hidden(folder: *mut DIR, name: *const c_char) -> bool {
    // SAFETY: a name has a first byte.
    let first = unsafe { name.cast::<u8>().read() };
    // SAFETY: by the caller's word.
    first.is_ascii_digit() && process::enabled() && unsafe { is_ours(folder, name) }
}

#[cold]
unsafe fn is_ours(folder: *mut DIR, name: *const c_char) -> bool {
    // SAFETY: by the caller's word.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: by the caller's word.
    names_ours(name) && proc::lists_numbers_here(unsafe { libc::dirfd(folder) })
}

fn names_ours(name: &CStr) -> bool {
    number_in(name.to_bytes()).is_some_and(handles::was_listed_as_own)
}

fn number_in(name: &[u8]) -> Option<c_int> {
    name.iter().try_fold(0, |number: c_int, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// Makes a call that fills `buffer` with entries of the folder, and takes ours out of them. A call that gave
/// nothing else is made again: no entries are the end.
///
/// # Safety
/// The call returns how many bytes it wrote there, of entries of this form.
pub unsafe fn fill(folder: c_int, buffer: *mut u8, form: Form, call: impl Fn() -> isize) -> isize {
    loop {
        let filled = call();
        if filled <= 0 || !process::enabled() {
            return filled;
        }
        // SAFETY: so many bytes, by the caller's word.
        let entries = unsafe { slice::from_raw_parts_mut(buffer, filled as usize) };
        let left = take_ours_out(folder, entries, form);
        if left > 0 {
            return left as isize;
        }
    }
}

/// Returns how many bytes are left.
fn take_ours_out(folder: c_int, entries: &mut [u8], form: Form) -> usize {
    let mut verdict = None;
    let mut hides = |name: &[u8]| {
        name.first().is_some_and(u8::is_ascii_digit)
            && CStr::from_bytes_until_nul(name).is_ok_and(names_ours)
            && *verdict.get_or_insert_with(|| proc::lists_numbers_here(folder))
    };
    let (mut from, mut to) = (0, 0);
    while let Some(bytes) = length_of(&entries[from..], form) {
        if !hides(&entries[from + form.name_at..from + bytes]) {
            if to < from {
                entries.copy_within(from..from + bytes, to);
            }
            to += bytes;
        }
        from += bytes;
    }
    let rest = from..entries.len();
    if to < from {
        entries.copy_within(rest.clone(), to);
    }
    to + rest.len()
}

/// The length of the first entry, if there is one.
fn length_of(entries: &[u8], form: Form) -> Option<usize> {
    let length = entries.get(form.length_at..form.length_at + 2)?;
    let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
    (form.name_at..=entries.len()).contains(&length).then_some(length)
}

/// Takes ours out of the list that scandir(3) made of the folder at a path; returns how many are left.
///
/// # Safety
/// `list` has `count` entries of this form, made by malloc(3); the path is NUL-terminated.
pub unsafe fn take_ours_out_of_list(
    (folder, path): (c_int, *const c_char),
    list: *mut *mut c_void,
    count: usize,
    form: Form,
) -> usize {
    // SAFETY: so many, by the caller's word.
    let list = unsafe { slice::from_raw_parts_mut(list, count) };
    // SAFETY: by the caller's word.
    let name = |entry: *mut c_void| unsafe { CStr::from_ptr(entry.byte_add(form.name_at).cast()) };
    if !process::enabled() || process::in_vfork_child() {
        return count;
    }
    if !list.iter().any(|entry| names_ours(name(*entry))) {
        return count;
    }
    // SAFETY: by the caller's word.
    if !proc::is_list_of_numbers_here(folder, unsafe { CStr::from_ptr(path) }) {
        return count;
    }
    let mut left = 0;
    for at in 0..count {
        let entry = list[at];
        if names_ours(name(entry)) {
            // SAFETY: made by malloc, by the caller's word, and the list's alone.
            unsafe { libc::free(entry) };
        } else {
            list[left] = entry;
            left += 1;
        }
    }
    left
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn entries(names: &[&str], form: Form) -> Vec<u8> {
        let mut entries = Vec::new();
        for name in names {
            let length = (form.name_at + name.len() + 1).next_multiple_of(8);
            let mut entry = vec![0; length];
            entry[form.length_at..form.length_at + 2]
                .copy_from_slice(&(length as u16).to_ne_bytes());
            entry[form.name_at..form.name_at + name.len()].copy_from_slice(name.as_bytes());
            entries.extend(entry);
        }
        entries
    }

    #[test]
    fn ours_are_taken_out_of_lists_and_nothing_else_is() {
        let own = handles::eventfd().expect("an eventfd");
        let list = handles::place_high(open(c"/proc/self/fd")).expect("room");
        let elsewhere = handles::place_high(open(c"/proc/self")).expect("room");
        for form in [PLAIN, WIDE, OLD] {
            let ours = own.to_string();
            let mut all = entries(&[".", "..", "0", &ours, "17", "name"], form);
            let theirs = entries(&[".", "..", "0", "17", "name"], form);
            let before = all.clone();
            assert_eq!(take_ours_out(elsewhere, &mut all, form), before.len());
            assert_eq!(all, before);
            let left = take_ours_out(list, &mut all, form);
            assert_eq!(all[..left], theirs[..]);
            let mut only = entries(&[&ours], form);
            assert_eq!(take_ours_out(list, &mut only, form), 0);
        }
        assert!(names_ours(&name_of(own)));
        handles::close(own);
        assert!(names_ours(&name_of(own)), "it was listed before it was closed");
        handles::close(list);
        handles::close(elsewhere);
    }

    #[test]
    fn entries_that_make_no_sense_end_the_list() {
        for length in [0u16, 5, 19, 200] {
            let mut one = entries(&["1"], WIDE);
            one[WIDE.length_at..WIDE.length_at + 2].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(take_ours_out(-1, &mut one, WIDE), one.len());
        }
        assert_eq!(take_ours_out(-1, &mut [0; 4], WIDE), 4);
    }

    fn name_of(fd: i32) -> std::ffi::CString {
        std::ffi::CString::new(fd.to_string()).expect("digits")
    }

    fn open(path: &CStr) -> i32 {
        // SAFETY: a NUL-terminated path.
        unsafe { libc::open(path.as_ptr(), libc::O_RDONLY) }
    }
}
