//! Numbers from a seed: the same seed gives the same program on every machine.

use shunt_carriers::faulty::Dice;

pub struct Random(Dice);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(Dice::new(seed ^ 0x5DEE_CE66_D1CE_4E5B))
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        self.0.below(u64::from(bound.max(1))) as u32
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u32) -> bool {
        self.below(times) == 0
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize].clone()
    }

    /// An index, by weight.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let mut at = self.below(weights.iter().sum());
        for (index, &weight) in weights.iter().enumerate() {
            if at < weight {
                return index;
            }
            at -= weight;
        }
        weights.len() - 1
    }
}
