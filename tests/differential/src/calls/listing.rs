//! What is in a folder, by every call that tells.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::mem::offset_of;
use std::ptr::null_mut;

use libc::{c_char, c_int, c_void, dirent, dirent64, size_t, DIR};

use super::Fd;

extern "C" {
    fn getdents64(folder: c_int, buffer: *mut c_void, bytes: size_t) -> libc::ssize_t;
    fn getdirentries(
        folder: c_int,
        buffer: *mut c_char,
        bytes: size_t,
        place: *mut libc::off_t,
    ) -> libc::ssize_t;
    fn getdirentries64(
        folder: c_int,
        buffer: *mut c_char,
        bytes: size_t,
        place: *mut i64,
    ) -> libc::ssize_t;
    fn readdir_r(folder: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int;
    fn readdir64_r(folder: *mut DIR, entry: *mut dirent64, result: *mut *mut dirent64) -> c_int;
    fn scandir(path: *const c_char, list: *mut List, choose: Choice, compare: Order) -> c_int;
    fn scandir64(path: *const c_char, list: *mut List, choose: Choice, compare: Order) -> c_int;
    fn scandirat(
        folder: c_int,
        path: *const c_char,
        list: *mut List,
        choose: Choice,
        compare: Order,
    ) -> c_int;
    fn scandirat64(
        folder: c_int,
        path: *const c_char,
        list: *mut List,
        choose: Choice,
        compare: Order,
    ) -> c_int;
}

type List = *mut *mut c_void;
type Choice = *const c_void;
type Order = *const c_void;
pub type Names = BTreeSet<String>;

/// The names in the folder at a path.
pub type Call = fn(&str) -> Names;

/// Each call by its name.
pub const ALL: [(&str, Call); 13] = [
    ("readdir", by_readdir),
    ("readdir64", by_readdir64),
    ("readdir_r", by_readdir_r),
    ("readdir64_r", by_readdir64_r),
    ("getdents64", |path| {
        by_pieces(path, WIDE, |fd, room, bytes| {
            // SAFETY: as many writable bytes.
            unsafe { getdents64(fd, room.cast(), bytes) }
        })
    }),
    ("getdirentries", |path| {
        by_pieces(path, PLAIN, |fd, room, bytes| {
            // SAFETY: as many writable bytes, and a place.
            unsafe { getdirentries(fd, room.cast(), bytes, &mut 0) }
        })
    }),
    ("getdirentries64", |path| {
        by_pieces(path, WIDE, |fd, room, bytes| {
            // SAFETY: as many writable bytes, and a place.
            unsafe { getdirentries64(fd, room.cast(), bytes, &mut 0) }
        })
    }),
    ("SYS_getdents64", |path| {
        by_pieces(path, WIDE, |fd, room, bytes| {
            // SAFETY: as many writable bytes.
            unsafe { libc::syscall(libc::SYS_getdents64, fd, room, bytes) as isize }
        })
    }),
    ("SYS_getdents", |path| {
        by_pieces(path, OLD, |fd, room, bytes| {
            // SAFETY: as many writable bytes.
            unsafe { libc::syscall(libc::SYS_getdents, fd, room, bytes) as isize }
        })
    }),
    ("scandir", |path| {
        whole(path, PLAIN, |path, list| {
            // SAFETY: a C string and a place for the list.
            unsafe { scandir(path, list, null_mut(), libc_alphasort()) }
        })
    }),
    ("scandir64", |path| {
        whole(path, WIDE, |path, list| {
            // SAFETY: as above.
            unsafe { scandir64(path, list, null_mut(), null_mut()) }
        })
    }),
    ("scandirat", |path| {
        whole(path, PLAIN, |path, list| {
            // SAFETY: as above.
            unsafe { scandirat(libc::AT_FDCWD, path, list, null_mut(), null_mut()) }
        })
    }),
    ("scandirat64", |path| {
        whole(path, WIDE, |path, list| {
            // SAFETY: as above.
            unsafe { scandirat64(libc::AT_FDCWD, path, list, null_mut(), null_mut()) }
        })
    }),
];

fn libc_alphasort() -> Order {
    extern "C" {
        fn alphasort(a: *const *const dirent, b: *const *const dirent) -> c_int;
    }
    alphasort as *const () as Order
}

/// Where the length of an entry stands, and where its name.
type Form = (usize, usize);
const PLAIN: Form = (offset_of!(dirent, d_reclen), offset_of!(dirent, d_name));
const WIDE: Form = (offset_of!(dirent64, d_reclen), offset_of!(dirent64, d_name));
const OLD: Form = (2 * size_of::<usize>(), 2 * size_of::<usize>() + 2);

fn text(name: *const c_char) -> String {
    // SAFETY: the name of an entry, which ends in NUL.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

fn path_of(path: &str) -> CString {
    CString::new(path).expect("paths hold no zero byte")
}

fn each(path: &str, mut next: impl FnMut(*mut DIR) -> Option<String>) -> Names {
    // SAFETY: a C string.
    let folder = unsafe { libc::opendir(path_of(path).as_ptr()) };
    assert!(!folder.is_null(), "opendir of {path}");
    let names = std::iter::from_fn(|| next(folder)).collect();
    // SAFETY: opened above.
    unsafe { libc::closedir(folder) };
    names
}

fn by_readdir(path: &str) -> Names {
    // SAFETY: an open folder; what it gives is an entry or null.
    each(path, |folder| unsafe {
        libc::readdir(folder).as_ref().map(|entry| text(entry.d_name.as_ptr()))
    })
}

fn by_readdir64(path: &str) -> Names {
    // SAFETY: as above.
    each(path, |folder| unsafe {
        libc::readdir64(folder).as_ref().map(|entry| text(entry.d_name.as_ptr()))
    })
}

fn by_readdir_r(path: &str) -> Names {
    each(path, |folder| {
        // SAFETY: zero is a valid entry to write to.
        let mut entry: dirent = unsafe { std::mem::zeroed() };
        let mut result = null_mut();
        // SAFETY: places for an entry and for its address.
        assert_eq!(unsafe { readdir_r(folder, &mut entry, &mut result) }, 0);
        (!result.is_null()).then(|| text(entry.d_name.as_ptr()))
    })
}

fn by_readdir64_r(path: &str) -> Names {
    each(path, |folder| {
        // SAFETY: zero is a valid entry to write to.
        let mut entry: dirent64 = unsafe { std::mem::zeroed() };
        let mut result = null_mut();
        // SAFETY: places for an entry and for its address.
        assert_eq!(unsafe { readdir64_r(folder, &mut entry, &mut result) }, 0);
        (!result.is_null()).then(|| text(entry.d_name.as_ptr()))
    })
}

/// In pieces that hold few entries.
fn by_pieces(path: &str, form: Form, call: impl Fn(Fd, *mut u8, usize) -> isize) -> Names {
    // SAFETY: a C string.
    let folder = unsafe { libc::open(path_of(path).as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY) };
    assert!(folder >= 0, "open of {path}");
    let mut names = Names::new();
    let mut room = [0u64; 16];
    loop {
        let bytes = call(folder, room.as_mut_ptr().cast(), size_of_val(&room));
        assert!(bytes >= 0, "{}", super::errno_name(super::errno()));
        if bytes == 0 {
            break;
        }
        let mut at = 0;
        while at < bytes as usize {
            // SAFETY: the call has written so many bytes of entries.
            let entry = unsafe { room.as_ptr().cast::<u8>().add(at) };
            // SAFETY: as above.
            names.insert(text(unsafe { entry.add(form.1) }.cast()));
            // SAFETY: as above.
            at += usize::from(unsafe { entry.add(form.0).cast::<u16>().read_unaligned() });
        }
    }
    super::socket::close(folder);
    names
}

fn whole(path: &str, form: Form, call: impl Fn(*const c_char, *mut List) -> c_int) -> Names {
    let mut list: List = null_mut();
    let count = call(path_of(path).as_ptr(), &raw mut list);
    assert!(count >= 0, "scandir of {path}");
    let mut names = Names::new();
    for at in 0..count as usize {
        // SAFETY: so many entries.
        let entry = unsafe { *list.add(at) };
        // SAFETY: an entry has a name.
        names.insert(text(unsafe { entry.byte_add(form.1) }.cast()));
        // SAFETY: made by malloc(3), as is the list.
        unsafe { libc::free(entry) };
    }
    // SAFETY: as above.
    unsafe { libc::free(list.cast()) };
    names
}
