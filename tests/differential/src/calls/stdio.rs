//! libc's buffered files on a descriptor.

use super::{Fd, Got};
use std::ffi::CString;

extern "C" {
    fn closefrom(lowest: Fd);
    fn dprintf(fd: Fd, format: *const libc::c_char, ...) -> i32;
}

/// A FILE; closed by [`File::close`] alone.
pub struct File(*mut libc::FILE);

impl File {
    pub fn on(fd: Fd, mode: &str) -> File {
        let mode = CString::new(mode).expect("modes hold no zero byte");
        // SAFETY: the mode is a C string; a bad descriptor gives NULL, which is checked.
        let file = unsafe { libc::fdopen(fd, mode.as_ptr()) };
        assert!(!file.is_null(), "fdopen");
        File(file)
    }

    pub fn open(path: &str, mode: &str) -> File {
        let [path, mode] = [path, mode].map(|text| CString::new(text).expect("no zero byte"));
        // SAFETY: C strings; what is not there gives NULL, which is checked.
        let file = unsafe { libc::fopen(path.as_ptr(), mode.as_ptr()) };
        assert!(!file.is_null(), "fopen");
        File(file)
    }

    pub fn put(&self, text: &str) -> Got {
        let text = CString::new(text).expect("text holds no zero byte");
        match call!(libc::fputs(text.as_ptr(), self.0)) {
            Got::Errno(error) => Got::Errno(error),
            _ => Got::Value(0),
        }
    }

    pub fn flush(&self) -> Got {
        match call!(libc::fflush(self.0)) {
            Got::Errno(error) => Got::Errno(error),
            _ => Got::Value(0),
        }
    }

    /// One line, or nothing at the end.
    pub fn line(&self) -> Option<String> {
        let mut room = [0u8; 256];
        // SAFETY: the room is as long as fgets is told, and the FILE is open.
        let line = unsafe { libc::fgets(room.as_mut_ptr().cast(), room.len() as i32, self.0) };
        let len = room.iter().position(|&byte| byte == 0).unwrap_or(0);
        (!line.is_null()).then(|| String::from_utf8_lossy(&room[..len]).into_owned())
    }

    pub fn read(&self, buffer: &mut [u8]) -> usize {
        // SAFETY: the buffer is as long as fread is told, and the FILE is open.
        unsafe { libc::fread(buffer.as_mut_ptr().cast(), 1, buffer.len(), self.0) }
    }

    pub fn write(&self, bytes: &[u8]) -> usize {
        // SAFETY: the bytes are as many as fwrite is told, and the FILE is open.
        unsafe { libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), self.0) }
    }

    pub fn close(self) -> i32 {
        // SAFETY: the FILE is open, and `self` is gone afterwards.
        unsafe { libc::fclose(self.0) }
    }

    /// As [`File::close`]; with the error.
    pub fn closed(self) -> Got {
        call!(libc::fclose(self.0))
    }
}

pub fn close_all_from(lowest: Fd) {
    // SAFETY: closing descriptors cannot break memory.
    unsafe { closefrom(lowest) }
}

pub fn print_to(fd: Fd, text: &str) -> i32 {
    let text = CString::new(text).expect("text holds no zero byte");
    // SAFETY: the format has one %s, which is given.
    unsafe { dprintf(fd, c"%s".as_ptr(), text.as_ptr()) }
}
