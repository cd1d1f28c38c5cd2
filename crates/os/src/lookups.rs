//! What the loader finds under a name. A module that is opened with RTLD_DEEPBIND is bound to the C library
//! before anything that stands in front of it, and a program may ask the C library itself for a function
//! (dlopen, dlsym): such calls pass by us. [`lead_here`] puts that right for all of them: in this process's
//! copy of the C library's table of symbols, which the loader reads and the ELF specification describes,
//! each function that we export gets our address. Whoever looks one up there finds ours, whenever and
//! however; what was bound before stays as it is.
//!
//! Our own calls go to the genuine functions ([`super::real`]), whose addresses are noted first.

use core::ffi::{c_char, c_int, c_void, CStr};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};

use libc::dl_phdr_info;

use crate::lock::Lock;
use crate::{real, sys};

#[cfg(target_pointer_width = "64")]
use libc::{Elf64_Phdr as Segment, Elf64_Sym as Symbol};

#[cfg(target_pointer_width = "32")]
use libc::{Elf32_Phdr as Segment, Elf32_Sym as Symbol};

/// The table is ours.
static LED: AtomicBool = AtomicBool::new(false);
/// The functions whose place in the table we have, or are about to have.
static GENUINE: AtomicPtr<Vec<Genuine>> = AtomicPtr::new(null_mut());
/// Held while the table is written. Nobody waits for the loader holding it: it runs constructors.
static WRITING: Lock<()> = Lock::new(());

struct Genuine {
    name: &'static CStr,
    address: usize,
}

/// The genuine function of this name, if the C library's table has ours in its place.
pub fn genuine(name: &CStr) -> Option<*mut c_void> {
    // SYNC genuine -> lead_here: who has found ours in the table finds the genuine one here.
    let known = GENUINE.load(SeqCst);
    // SAFETY: published whole, and never freed.
    let known = unsafe { known.as_ref() }?;
    known.iter().find(|one| one.name == name).map(|one| one.address as *mut c_void)
}

/// Has the loader find our functions wherever it finds those of the C library, from now on. False if that
/// cannot be: the table cannot be written, or what we stand in front of is not in the C library but in
/// another library between (then its calls would come back to it), or in several (before glibc 2.34).
pub fn lead_here() -> bool {
    if LED.load(Relaxed) {
        return true;
    }
    let Some((ours, theirs)) = objects() else { return false };
    let mut found = Vec::new();
    let mut changes = Vec::new();
    for (name, address) in ours.exports() {
        let genuine = real::find(name) as usize;
        let entries = theirs.named(name);
        let is_there = entries.iter().any(|entry| {
            let at = theirs.address_of(*entry);
            at == genuine || at == address
        });
        if genuine != 0 || !entries.is_empty() {
            if genuine == 0 || !is_there || !entries.iter().all(|entry| is_function(*entry)) {
                return false;
            }
            found.push(Genuine { name, address: genuine });
            changes.extend(entries.into_iter().map(|entry| (entry, address)));
        }
    }
    let _writing = WRITING.lock();
    if LED.load(Relaxed) {
        return true;
    }
    if GENUINE.load(Relaxed).is_null() {
        // SYNC genuine -> genuine: known before anybody can find ours in the table.
        GENUINE.store(Box::into_raw(Box::new(found)), SeqCst);
    }
    let led = theirs.write(&changes);
    LED.store(led, Relaxed);
    led
}

/// In a forked child: a thread that wrote is not there, and what it left is done again.
///
/// # Safety
/// The process has one thread.
pub unsafe fn after_fork() {
    // SAFETY: one thread, by the caller's word.
    unsafe { WRITING.force_open() };
}

fn is_function(entry: *mut Symbol) -> bool {
    // SAFETY: an entry of a table that stays mapped.
    unsafe { (*entry).st_info & 15 == STT_FUNC }
}

const STT_FUNC: u8 = 2;
const SHN_UNDEF: u16 = 0;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_SONAME: usize = 14;
const DT_GNU_HASH: usize = 0x6fff_fef5;

/// A library as it lies in memory. It is one that is never closed.
struct Object {
    /// What its addresses are relative to.
    base: usize,
    segments: &'static [Segment],
    names: *const c_char,
    symbols: *mut Symbol,
    table: Table,
}

/// Its table of symbols by name: of each bucket the first symbol, and for each symbol from `first` on its
/// hash, whose lowest bit is set in a bucket's last.
struct Table {
    first: u32,
    buckets: &'static [u32],
    hashes: *const u32,
}

/// An entry of a library's dynamic section.
#[repr(C)]
struct Entry {
    tag: usize,
    value: usize,
}

/// Our library and the C library.
fn objects() -> Option<(Object, Object)> {
    let mut found: [Option<Object>; 2] = [None, None];
    // SAFETY: `note` has this form, and gets the address of what it expects.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut found).cast()) };
    let [ours, theirs] = found;
    ours.zip(theirs)
}

unsafe extern "C" fn note(info: *mut dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: `objects` passes its array, and nobody else has it meanwhile.
    let found = unsafe { &mut *found.cast::<[Option<Object>; 2]>() };
    // SAFETY: valid during this call, by dl_iterate_phdr(3).
    let info = unsafe { &*info };
    let base = info.dlpi_addr as usize;
    // SAFETY: so many, which stay where they are as long as the library does.
    let segments = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let is_ours = holds(base, segments, lead_here as *const () as usize).is_some();
    if let Some((object, soname)) = Object::read(base, segments) {
        if is_ours {
            found[0] = Some(object);
        } else if soname == Some(c"libc.so.6") {
            found[1] = Some(object);
        }
    }
    0
}

/// The segment of the library's file that is mapped at this address.
fn holds(base: usize, segments: &'static [Segment], address: usize) -> Option<&'static Segment> {
    segments.iter().find(|segment| {
        let start = base.wrapping_add(segment.p_vaddr as usize);
        segment.p_type == libc::PT_LOAD
            && (start..start + segment.p_memsz as usize).contains(&address)
    })
}

impl Object {
    /// Of a library that has a hashed table; with the name that it gives itself.
    fn read(base: usize, segments: &'static [Segment]) -> Option<(Object, Option<&'static CStr>)> {
        let dynamic = segments.iter().find(|segment| segment.p_type == libc::PT_DYNAMIC)?;
        let mut entry = base.wrapping_add(dynamic.p_vaddr as usize) as *const Entry;
        let [mut names, mut symbols, mut hash] = [0; 3];
        let mut soname = None;
        loop {
            // SAFETY: the section ends with an entry whose tag is 0.
            let Entry { tag, value } = unsafe { entry.read() };
            match tag {
                0 => break,
                DT_STRTAB => names = value,
                DT_SYMTAB => symbols = value,
                DT_GNU_HASH => hash = value,
                DT_SONAME => soname = Some(value),
                _ => {}
            }
            // SAFETY: the last was not the end.
            entry = unsafe { entry.add(1) };
        }
        // The loader makes addresses of them, but not in every library (the vDSO).
        let at = |value: usize| if value < base { base + value } else { value };
        if names == 0 || symbols == 0 || hash == 0 {
            return None;
        }
        let names = at(names) as *const c_char;
        // SAFETY: a place in the library's table of names, each of which ends in NUL.
        let soname = soname.map(|place| unsafe { CStr::from_ptr(names.add(place)) });
        // SAFETY: where the library says that its table is.
        let table = unsafe { Table::read(at(hash) as *const u32) };
        Some((Object { base, segments, names, symbols: at(symbols) as *mut Symbol, table }, soname))
    }

    /// The functions that it exports: their names and addresses.
    fn exports(&self) -> impl Iterator<Item = (&'static CStr, usize)> + '_ {
        let symbols = self.table.buckets.iter().flat_map(|first| self.table.bucket(*first));
        symbols
            .map(|(index, _)| self.entry(index))
            .filter(|entry| is_function(*entry))
            .map(|entry| (self.name_of(entry), self.address_of(entry)))
    }

    /// The entries of this name that define something, one for each version.
    fn named(&self, name: &CStr) -> Vec<*mut Symbol> {
        let hash = hash(name);
        let buckets = self.table.buckets;
        let Some(first) = buckets.get(hash as usize % buckets.len().max(1)) else {
            return Vec::new();
        };
        let symbols = self.table.bucket(*first);
        symbols
            .filter(|(_, its)| its | 1 == hash | 1)
            .map(|(index, _)| self.entry(index))
            .filter(|entry| self.name_of(*entry) == name && is_defined(*entry))
            .collect()
    }

    fn entry(&self, index: u32) -> *mut Symbol {
        // SAFETY: the table of hashes has numbers of entries.
        unsafe { self.symbols.add(index as usize) }
    }

    fn name_of(&self, entry: *mut Symbol) -> &'static CStr {
        // SAFETY: as `is_function`.
        let place = unsafe { (*entry).st_name };
        // SAFETY: as in `read`.
        unsafe { CStr::from_ptr(self.names.add(place as usize)) }
    }

    fn address_of(&self, entry: *mut Symbol) -> usize {
        // SAFETY: as `is_function`; another thread may write it.
        self.base.wrapping_add(unsafe { value_of(entry) }.load(Relaxed))
    }

    /// Writes each of the addresses to its entry, in pages that are read-only before and after.
    fn write(&self, changes: &[(*mut Symbol, usize)]) -> bool {
        // SAFETY: getauxval has no preconditions.
        let page_bytes = unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize;
        let places = || changes.iter().map(|(entry, _)| *entry as usize);
        let (Some(first), Some(last)) = (places().min(), places().max()) else { return false };
        let Some(segment) = holds(self.base, self.segments, first) else { return false };
        let end = (last + size_of::<Symbol>()).next_multiple_of(page_bytes);
        let segment_start = self.base + segment.p_vaddr as usize;
        let segment_end = (segment_start + segment.p_memsz as usize).next_multiple_of(page_bytes);
        if segment.p_flags != libc::PF_R || end > segment_end {
            return false;
        }
        let start = first & !(page_bytes - 1);
        let protect = |how: c_int| {
            // SAFETY: pages of one segment that nobody executes; they stay readable.
            unsafe { sys!(libc::SYS_mprotect, start, end - start, how) }.is_ok()
        };
        if !protect(libc::PROT_READ | libc::PROT_WRITE) {
            return false;
        }
        for (entry, address) in changes {
            // SAFETY: writable now; the loader reads it at any time, and finds one or the other.
            // SYNC genuine -> genuine: after the note of what was there.
            unsafe { value_of(*entry) }.store(address.wrapping_sub(self.base), SeqCst);
        }
        protect(libc::PROT_READ)
    }
}

impl Table {
    /// # Safety
    /// `at` is the beginning of such a table.
    unsafe fn read(at: *const u32) -> Table {
        // SAFETY: four numbers, by the caller's word.
        let [buckets, first, filter_words, _] = unsafe { at.cast::<[u32; 4]>().read() };
        // SAFETY: behind them a filter in words of the machine, then the buckets.
        let begin = unsafe { at.add(4).byte_add(filter_words as usize * size_of::<usize>()) };
        // SAFETY: so many, and as long as the library is there.
        let buckets = unsafe { core::slice::from_raw_parts(begin, buckets as usize) };
        let hashes = buckets.as_ptr_range().end;
        Table { first, buckets, hashes }
    }

    /// The symbols of the bucket that begins with this one: numbers and hashes.
    fn bucket(&self, first: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut next = (first >= self.first).then_some(first);
        core::iter::from_fn(move || {
            let index = next?;
            // SAFETY: each symbol from `first` on has a hash, up to the last in its bucket.
            let hash = unsafe { self.hashes.add((index - self.first) as usize).read() };
            next = (hash & 1 == 0).then_some(index + 1);
            Some((index, hash))
        })
    }
}

fn is_defined(entry: *mut Symbol) -> bool {
    // SAFETY: as `is_function`.
    unsafe { (*entry).st_shndx != SHN_UNDEF }
}

/// # Safety
/// `entry` is one of a table that stays mapped.
unsafe fn value_of(entry: *mut Symbol) -> &'static AtomicUsize {
    // SAFETY: a word of the machine at its natural alignment, by the caller's word.
    unsafe { AtomicUsize::from_ptr((&raw mut (*entry).st_value).cast()) }
}

/// The hash of a name in such a table.
fn hash(name: &CStr) -> u32 {
    name.to_bytes()
        .iter()
        .fold(5381, |sum: u32, byte| sum.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    struct CLibrary(Option<Object>);

    unsafe extern "C" fn find(info: *mut dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: as `note`.
        unsafe {
            let (base, count) = ((*info).dlpi_addr as usize, (*info).dlpi_phnum as usize);
            let segments = core::slice::from_raw_parts((*info).dlpi_phdr, count);
            match Object::read(base, segments) {
                Some((object, name)) if name == Some(c"libc.so.6") => {
                    (*found.cast::<CLibrary>()).0 = Some(object);
                }
                _ => {}
            }
        }
        0
    }

    fn c_library() -> Object {
        let mut found = CLibrary(None);
        // SAFETY: as in `objects`.
        unsafe { libc::dl_iterate_phdr(Some(find), (&raw mut found).cast()) };
        found.0.expect("every test has the C library")
    }

    #[test]
    fn names_are_found_where_the_loader_finds_them() {
        let library = c_library();
        for name in [c"recv", c"poll", c"dlopen", c"posix_spawn", c"environ"] {
            // SAFETY: a NUL-terminated name.
            let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
            let entries = library.named(name);
            let found = entries.iter().any(|entry| library.address_of(*entry) == address);
            assert!(found, "{name:?}");
            assert_eq!(is_function(entries[0]), name != c"environ", "{name:?}");
        }
        assert!(library.named(c"no_such_function_at_all").is_empty());
        assert!(library.named(c"").is_empty());
    }

    #[test]
    fn exports_are_all_that_a_library_defines() {
        let library = c_library();
        let all: Vec<_> = library.exports().collect();
        assert!(all.len() > 1000, "{}", all.len());
        assert!(all.iter().all(|(name, _)| !library.named(name).is_empty()));
    }

    #[test]
    fn what_is_written_is_what_the_loader_finds() {
        let library = c_library();
        let entries = library.named(c"getdate");
        let before = library.address_of(entries[0]);
        let ours = hash as *const () as usize;
        // SAFETY: nothing in this process calls it.
        let look = || unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getdate".as_ptr()) } as usize;
        assert_eq!(look(), before);
        assert!(library.write(&[(entries[0], ours)]));
        assert_eq!(look(), ours);
        assert!(library.write(&[(entries[0], before)]));
        assert_eq!(look(), before);
    }
}
