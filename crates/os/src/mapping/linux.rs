//! memfd with seals (`memfd_create(2)`, `fcntl(2)` F_ADD_SEALS).

use core::ptr::NonNull;

use crate::{handles, raw, sys, Errno, Result};

/// A mapping of shared memory. Never unmapped by drop: its users decide when nobody can touch it.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    pub base: NonNull<u8>,
    pub bytes: usize,
}

// SAFETY: a plain address range; access rules are those of whoever uses it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Creates a memfd of `bytes` zero bytes; `seal` fixes its size for ever.
///
/// # Errors
/// ENOMEM, EMFILE and so on as the kernel gives; EFBIG if RLIMIT_FSIZE is lower than `bytes`
/// (asking the kernel would raise SIGXFSZ in the program).
pub fn create(name: &core::ffi::CStr, bytes: u64, seal: bool) -> Result<i32> {
    if !may_have(bytes) {
        return Err(Errno(libc::EFBIG));
    }
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: `name` is NUL-terminated.
    let fd = handles::keep_high_at_once(|| unsafe {
        sys!(libc::SYS_memfd_create, name.as_ptr(), flags).map(|fd| fd as i32)
    })?;
    let sized = set_size(fd, bytes);
    let sealed = if seal && sized.is_ok() {
        // SAFETY: an own descriptor.
        unsafe { sys!(libc::SYS_fcntl, fd, libc::F_ADD_SEALS, SEALS) }
    } else {
        sized
    };
    if let Err(error) = sealed {
        handles::close(fd);
        return Err(error);
    }
    Ok(fd)
}

/// Whether this process may make a file of so many bytes; it would get SIGXFSZ.
pub fn may_have(bytes: u64) -> bool {
    raw::limit(libc::RLIMIT_FSIZE).is_ok_and(|limit| limit >= bytes)
}

/// Makes a file of ours as long as that.
pub fn set_size(fd: i32, bytes: u64) -> Result<usize> {
    let [low, high] = raw::in_registers(bytes);
    // SAFETY: no pointers.
    unsafe { sys!(raw::number::FTRUNCATE, fd, low, high) }
}

/// The first bytes of a file, copied; false if it is shorter.
pub fn read_start(fd: i32, into: &mut [u8]) -> bool {
    // SAFETY: a writable buffer; the offset is 0 however many registers it takes.
    let got = unsafe { sys!(libc::SYS_pread64, fd, into.as_mut_ptr(), into.len(), 0, 0) };
    got == Ok(into.len())
}

/// The size of a received memfd, if it is sealed as [`create`] seals it.
///
/// # Errors
/// EPERM if a seal is missing: the other side could cut the memory off under us.
pub fn sealed_size(fd: i32) -> Result<u64> {
    // SAFETY: no pointers.
    let seals = unsafe { sys!(libc::SYS_fcntl, fd, libc::F_GET_SEALS)? } as i32;
    if seals & (libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL)
        != (libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL)
    {
        return Err(Errno(libc::EPERM));
    }
    // Huge pages are reserved at the first touch, which may fail with SIGBUS: ordinary ones only.
    // SAFETY: zero is a valid statfs buffer.
    let mut system: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: `system` is valid for the call.
    unsafe { sys!(libc::SYS_fstatfs, fd, &raw mut system)? };
    if system.f_type != libc::TMPFS_MAGIC {
        return Err(Errno(libc::EPERM));
    }
    // SAFETY: zero is a valid stat buffer.
    let mut stat: libc::stat64 = unsafe { core::mem::zeroed() };
    // SAFETY: `stat` is valid for the call.
    unsafe { sys!(raw::number::FSTAT, fd, &raw mut stat)? };
    Ok(stat.st_size as u64)
}

/// Maps `bytes` of `fd`, shared and writable, kept out of core dumps.
pub fn map(fd: i32, bytes: usize) -> Result<Mapping> {
    map_part(fd, 0, bytes)
}

/// As [`map`], from `offset` on, which is whole pages.
pub fn map_part(fd: i32, offset: u64, bytes: usize) -> Result<Mapping> {
    map_with(fd, offset, bytes, libc::MAP_SHARED | libc::MAP_NORESERVE)
}

/// Maps `bytes` more, from `offset` on, of a file whose start `base` is a shared mapping of; the file need not be open.
///
/// # Safety
/// `base` is such a mapping, of a page at least, and stays it meanwhile.
pub unsafe fn map_more(base: NonNull<u8>, offset: u64, bytes: usize) -> Result<Mapping> {
    let head = offset as usize;
    // Of no old bytes: "a new mapping of the same pages", of any length (mremap(2)).
    // SAFETY: the new mapping is at an address of the kernel's choice, and the old one stays.
    let start =
        unsafe { sys!(libc::SYS_mremap, base.as_ptr(), 0, head + bytes, libc::MREMAP_MAYMOVE)? };
    let start = NonNull::new(start as *mut u8).ok_or(Errno(libc::ENOMEM))?;
    // SAFETY: inside what was just mapped.
    let more = Mapping { base: unsafe { start.add(head) }, bytes };
    if head > 0 {
        // SAFETY: nobody knows of it.
        unsafe { unmap(Mapping { base: start, bytes: head }) };
    }
    Ok(more)
}

/// Private zero memory, touched pages only: tables that must not come from the program's malloc.
pub fn anonymous(bytes: usize) -> Result<Mapping> {
    map_with(-1, 0, bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE)
}

/// Zero memory that a process and its forked children share.
pub fn anonymous_shared(bytes: usize) -> Result<Mapping> {
    map_with(-1, 0, bytes, libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE)
}

fn map_with(fd: i32, offset: u64, bytes: usize, flags: i32) -> Result<Mapping> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let offset = offset / raw::number::MMAP_UNIT;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let base = unsafe { sys!(raw::number::MMAP, 0, bytes, protection, flags, fd, offset)? };
    if fd >= 0 {
        // SAFETY: the range was just mapped.
        let _ = unsafe { sys!(libc::SYS_madvise, base, bytes, libc::MADV_DONTDUMP) };
    }
    let base = NonNull::new(base as *mut u8).ok_or(Errno(libc::ENOMEM))?;
    Ok(Mapping { base, bytes })
}

/// Unmaps.
///
/// # Safety
/// Nothing may touch the range any more.
pub unsafe fn unmap(mapping: Mapping) {
    // SAFETY: the caller vouches for it.
    let _ = unsafe { sys!(libc::SYS_munmap, mapping.base.as_ptr(), mapping.bytes) };
}

/// Gives the pages of a range of a shared mapping back; it reads as zeros afterwards.
///
/// # Safety
/// Nobody may need what the range holds.
pub unsafe fn give_back(base: *mut u8, bytes: usize) {
    // SAFETY: the caller vouches for the range.
    let _ = unsafe { sys!(libc::SYS_madvise, base, bytes, libc::MADV_REMOVE) };
}

/// Puts private zero memory in the place of a range of a shared mapping, which others keep as it is.
///
/// # Safety
/// As [`give_back`], but for this process alone.
pub unsafe fn let_go(base: *mut u8, bytes: usize) {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    const NO_FILE: i32 = -1;
    // SAFETY: the caller vouches for the range.
    let _ = unsafe { sys!(raw::number::MMAP, base, bytes, protection, flags, NO_FILE, 0) };
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn what_one_lets_go_others_keep() {
        const BYTES: usize = 8192;
        let fd = create(c"test", BYTES as u64, true).expect("memory");
        let [one, other] = [(); 2].map(|()| map(fd, BYTES).expect("a mapping").base.as_ptr());
        // SAFETY: both are mapped, and nobody else has them.
        unsafe {
            one.write(1);
            one.add(4096).write(2);
            let_go(one, 4096);
            assert_eq!([one.read(), one.add(4096).read()], [0, 2]);
            one.write(3);
            assert_eq!([other.read(), other.add(4096).read()], [1, 2]);
        }
        handles::close(fd);
    }
}
