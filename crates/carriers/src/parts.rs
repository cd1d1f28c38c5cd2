//! The program's memory, piece by piece, as raw addresses: it may be unmapped, and it may change
//! under us, so it is never borrowed. Carriers take any iterator of parts; those below cut one.

/// A piece of memory to send from or to receive into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub base: *mut u8,
    pub len: usize,
}

impl Part {
    /// A piece that is only sent from.
    pub fn of(bytes: &[u8]) -> Part {
        Part { base: bytes.as_ptr().cast_mut(), len: bytes.len() }
    }

    /// A piece to receive into.
    pub fn into(bytes: &mut [u8]) -> Part {
        Part { base: bytes.as_mut_ptr(), len: bytes.len() }
    }
}

/// What of `parts` lies behind the first `skip` bytes; empty parts are left out.
#[inline]
pub fn behind(parts: impl Iterator<Item = Part>, skip: usize) -> impl Iterator<Item = Part> {
    let mut skip = skip;
    parts.filter_map(move |part| {
        let passed = skip.min(part.len);
        skip -= passed;
        let len = part.len - passed;
        (len > 0).then(|| Part { base: part.base.wrapping_add(passed), len })
    })
}

/// The first `limit` bytes of `parts`; empty parts are left out.
#[inline]
pub fn up_to(parts: impl Iterator<Item = Part>, limit: u64) -> impl Iterator<Item = Part> {
    let mut left = limit;
    parts
        .map(move |part| {
            let len = (part.len as u64).min(left) as usize;
            left -= len as u64;
            Part { base: part.base, len }
        })
        .filter(|part| part.len > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(parts: impl Iterator<Item = Part>) -> Vec<(usize, usize)> {
        parts.map(|part| (part.base as usize, part.len)).collect()
    }

    fn some() -> impl Iterator<Item = Part> {
        [(100, 3), (200, 0), (300, 5)]
            .into_iter()
            .map(|(at, len)| Part { base: at as *mut u8, len })
    }

    #[test]
    fn what_is_behind_starts_in_the_middle_of_a_part() {
        assert_eq!(lengths(behind(some(), 0)), [(100, 3), (300, 5)]);
        assert_eq!(lengths(behind(some(), 2)), [(102, 1), (300, 5)]);
        assert_eq!(lengths(behind(some(), 4)), [(301, 4)]);
        assert_eq!(lengths(behind(some(), 8)), []);
    }

    #[test]
    fn a_limit_cuts_the_part_it_falls_into() {
        assert_eq!(lengths(up_to(some(), 0)), []);
        assert_eq!(lengths(up_to(some(), 4)), [(100, 3), (300, 1)]);
        assert_eq!(lengths(up_to(some(), u64::MAX)), [(100, 3), (300, 5)]);
    }
}
