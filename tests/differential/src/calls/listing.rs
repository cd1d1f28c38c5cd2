//! What is in a folder, by every call that tells.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::mem::{offset_of, MaybeUninit};
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
    fn readdir_r(folder: *mut DIR, entry: *mut dirent, found: *mut *mut dirent) -> c_int;
    fn readdir64_r(folder: *mut DIR, entry: *mut dirent64, found: *mut *mut dirent64) -> c_int;
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
    ("readdir", |path| {
        each(path, PLAIN, |folder, _| {
            // SAFETY: an open folder.
            unsafe { libc::readdir(folder) }.cast()
        })
    }),
    ("readdir64", |path| {
        each(path, WIDE, |folder, _| {
            // SAFETY: an open folder.
            unsafe { libc::readdir64(folder) }.cast()
        })
    }),
    ("readdir_r", |path| {
        each(path, PLAIN, |folder, room| {
            let mut found = null_mut();
            // SAFETY: an open folder, room for an entry, and a place for its address.
            assert_eq!(unsafe { readdir_r(folder, room.cast(), &mut found) }, 0);
            found.cast()
        })
    }),
    ("readdir64_r", |path| {
        each(path, WIDE, |folder, room| {
            let mut found = null_mut();
            // SAFETY: as above.
            assert_eq!(unsafe { readdir64_r(folder, room.cast(), &mut found) }, 0);
            found.cast()
        })
    }),
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

/// One after the other; `next` gives an entry or null, and may write it into the room that it is given.
fn each(path: &str, form: Form, next: impl Fn(*mut DIR, *mut c_void) -> *const u8) -> Names {
    // SAFETY: a C string.
    let folder = unsafe { libc::opendir(path_of(path).as_ptr()) };
    assert!(!folder.is_null(), "opendir of {path}");
    let mut room = MaybeUninit::<dirent64>::uninit();
    let entries = std::iter::from_fn(|| {
        let entry = next(folder, room.as_mut_ptr().cast());
        (!entry.is_null()).then_some(entry)
    });
    // SAFETY: an entry has a name.
    let names = entries.map(|entry| text(unsafe { entry.add(form.1) }.cast())).collect();
    // SAFETY: opened above.
    unsafe { libc::closedir(folder) };
    names
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
