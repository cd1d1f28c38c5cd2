//! Times of single operations: 10 ns fine below 100 us, 1 us below 100 ms; no allocation while
//! measuring.

const FINE_NS: u64 = 10;
const FINE: usize = 10_000;
const COARSE_NS: u64 = 1_000;
const COARSE: usize = 100_000;

pub struct Histogram {
    counts: Vec<u32>,
    total: u64,
}

impl Histogram {
    pub fn new() -> Histogram {
        Histogram { counts: vec![0; FINE + COARSE], total: 0 }
    }

    #[inline]
    pub fn add(&mut self, ns: u64) {
        let fine = (ns / FINE_NS) as usize;
        let coarse = FINE + ((ns / COARSE_NS) as usize).min(COARSE - 1);
        let bucket = if fine < FINE { fine } else { coarse };
        self.counts[bucket] = self.counts[bucket].saturating_add(1);
        self.total += 1;
    }

    /// The time, in us, that this share of the operations did not exceed.
    pub fn percentile(&self, share: f64) -> f64 {
        let wanted = (self.total as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= wanted.max(1) {
                return middle_ns(bucket) / 1000.0;
            }
        }
        0.0
    }
}

fn middle_ns(bucket: usize) -> f64 {
    match bucket.checked_sub(FINE) {
        None => (bucket as f64 + 0.5) * FINE_NS as f64,
        Some(coarse) => (coarse as f64 + 0.5) * COARSE_NS as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_found_in_both_ranges() {
        let mut times = Histogram::new();
        (0..90).for_each(|_| times.add(1_004));
        (0..10).for_each(|_| times.add(5_000_400));
        assert_eq!(times.percentile(0.5), 1.005);
        assert_eq!(times.percentile(0.9), 1.005);
        assert_eq!(times.percentile(0.99), 5000.5);
    }

    #[test]
    fn what_took_very_long_counts_as_the_longest() {
        let mut times = Histogram::new();
        times.add(u64::MAX);
        assert!(times.percentile(0.5) > 99_000.0);
        assert_eq!(Histogram::new().percentile(0.5), 0.0);
    }
}
