//! A list that is nearly always short, and then lies on the stack: a wait allocates nothing.

const FEW: usize = 4;

/// In the order in which they came, unless they were sorted.
pub struct Few<T> {
    first: [Option<T>; FEW],
    count: usize,
    rest: Vec<T>,
}

impl<T: Copy> Few<T> {
    pub const fn new() -> Few<T> {
        Few { first: [None; FEW], count: 0, rest: Vec::new() }
    }

    #[inline]
    pub fn push(&mut self, item: T) {
        match self.first.get_mut(self.count) {
            Some(place) => *place = Some(item),
            None => self.rest.push(item),
        }
        self.count += 1;
    }

    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        let first = &self.first[..self.count.min(FEW)];
        first.iter().filter_map(|item| *item).chain(self.rest.iter().copied())
    }

    /// By what `key` says of each, the least first.
    #[inline]
    pub fn sort_by_key<K: Ord>(&mut self, mut key: impl FnMut(T) -> K) {
        if self.count <= 1 {
            return;
        }
        if self.rest.is_empty() {
            self.first[..self.count].sort_unstable_by_key(|item| item.map(&mut key));
            return;
        }
        self.rest.extend(self.first.iter_mut().filter_map(Option::take));
        self.rest.sort_unstable_by_key(|item| key(*item));
    }
}

impl<T: Copy> FromIterator<T> for Few<T> {
    #[inline]
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Few<T> {
        let mut few = Few::new();
        items.into_iter().for_each(|item| few.push(item));
        few
    }
}

#[cfg(test)]
mod tests {
    use super::Few;

    #[test]
    fn all_are_there_and_in_order_however_many() {
        for count in 0..12u32 {
            let given = (0..count).map(|at| (at * 7 + 3) % 12);
            let mut few: Few<u32> = given.clone().collect();
            assert!(few.iter().eq(given.clone()), "{count} as they came");
            few.sort_by_key(|item| item);
            let mut sorted: Vec<u32> = given.collect();
            sorted.sort_unstable();
            assert_eq!(few.iter().collect::<Vec<_>>(), sorted, "{count} in order");
        }
    }
}
