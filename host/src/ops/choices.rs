//! Which variant of a kernel runs for which shape, where somebody has measured it.
//!
//! A [`Problem`] is what a choice is made for: a family, the shape of a matrix, and a class of row
//! counts. [`Choices`] holds the variants to take instead of the families' own rules. Every variant
//! of a family gives the same bits, so choices change times and never results.

use std::collections::{HashMap, HashSet};
use std::fmt;

use contract::launch::LaunchSpec;
use contract::w2a8::{MAX_K, MAX_ROWS};
use serde::{Deserialize, Serialize};

use super::{OpError, bit_linear, w2a8_gemm, w2a8_gemv, w2a8_trits};

/// A kernel family that has variants and a rule to choose among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// [`super::bit_linear`].
    BitLinear,
    /// [`super::w2a8_gemv`].
    W2a8Gemv,
    /// [`super::w2a8_gemm`].
    W2a8Gemm,
    /// [`super::w2a8_trits`], one row.
    W2a8Trits,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::BitLinear, Self::W2a8Gemv, Self::W2a8Gemm, Self::W2a8Trits];

    /// Its name in the contract.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BitLinear => "bit_linear",
            Self::W2a8Gemv => "w2a8_gemv",
            Self::W2a8Gemm => "w2a8_gemm",
            Self::W2a8Trits => "w2a8_trits",
        }
    }

    /// Compiled variants.
    pub const fn variants_len(self) -> usize {
        match self {
            Self::BitLinear => bit_linear::VARIANTS.len(),
            Self::W2a8Gemv => contract::w2a8_gemv::VARIANTS.len(),
            Self::W2a8Gemm => contract::w2a8_gemm::VARIANTS.len(),
            Self::W2a8Trits => contract::w2a8_trits::VARIANTS.len(),
        }
    }

    /// The launch rules of variant `index`.
    pub fn spec(self, index: usize) -> Option<&'static LaunchSpec> {
        match self {
            Self::BitLinear => bit_linear::VARIANTS.get(index),
            Self::W2a8Gemv => contract::w2a8_gemv::VARIANTS.get(index).map(|v| &v.spec),
            Self::W2a8Gemm => contract::w2a8_gemm::VARIANTS.get(index).map(|v| &v.spec),
            Self::W2a8Trits => contract::w2a8_trits::VARIANTS.get(index).map(|v| &v.spec),
        }
    }

    /// The name of variant `index`, its kernel for most; empty when there is none.
    pub fn symbol(self, index: usize) -> &'static str {
        match self {
            Self::W2a8Gemm => contract::w2a8_gemm::VARIANTS.get(index).map_or("", |v| v.name),
            _ => self.spec(index).map_or("", |spec| spec.symbol),
        }
    }

    /// The variant of this name.
    pub fn find(self, symbol: &str) -> Option<usize> {
        (0..self.variants_len()).find(|&index| self.symbol(index) == symbol)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Largest row count of each class. Tiles have 8 to 128 tokens; two classes to a power of two keep the rows
/// of a class near each other.
pub const M_CLASSES: &[usize] =
    &[8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096];

/// What a choice is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Problem {
    family: Family,
    n: usize,
    k: usize,
    m: usize,
}

impl Problem {
    /// The one that `m` rows by an `n` by `k` matrix belong to. `None` for what the family does not take,
    /// and for more rows than the last of [`M_CLASSES`].
    pub fn of(family: Family, m: usize, n: usize, k: usize) -> Option<Self> {
        let longest = match family {
            Family::BitLinear => contract::bit_linear::MAX_K,
            _ => MAX_K,
        };
        if !(1..=MAX_ROWS).contains(&n) || !(1..=longest).contains(&k) || m == 0 {
            return None;
        }
        let m = match family {
            Family::W2a8Gemm => *M_CLASSES.iter().find(|&&class| m <= class)?,
            _ => (m == 1).then_some(1)?,
        };
        Some(Self { family, n, k, m })
    }

    /// The family.
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Rows of weights.
    pub const fn n(&self) -> usize {
        self.n
    }

    /// Elements of a row.
    pub const fn k(&self) -> usize {
        self.k
    }

    /// Most rows of activations of its class.
    pub const fn m(&self) -> usize {
        self.m
    }

    /// Whether variant `index` takes the shape on a device of `sms` multiprocessors, if the device has it.
    pub fn eligible(&self, index: usize, sms: u32) -> bool {
        match self.family {
            Family::BitLinear => bit_linear::variant_takes(index, self.k),
            Family::W2a8Gemv | Family::W2a8Trits => index < self.family.variants_len(),
            Family::W2a8Gemm => {
                let variant = contract::w2a8_gemm::VARIANTS.get(index);
                variant.is_some_and(|v| v.grid(self.m as u32, self.n as u32, sms).is_some())
            }
        }
    }

    /// Whether variant `index` is one for the layers of a model, where other kernels stand around it; tuning tries no others.
    pub fn in_layers(&self, index: usize) -> bool {
        let shape = [self.m as u32, self.n as u32, self.k as u32];
        self.family != Family::W2a8Gemm || w2a8_gemm::cost(index, shape, 1, [true, false]).is_some()
    }

    /// What runs when nothing was measured, on a device of `sms` multiprocessors that has those variants of
    /// which `has` says so. `chained`: launches overlap.
    pub fn default_variant(&self, sms: u32, chained: bool, has: impl Fn(usize) -> bool) -> usize {
        match self.family {
            Family::BitLinear => bit_linear::choose_index(self.k),
            Family::W2a8Gemv => w2a8_gemv::choose_index(self.n, self.k, chained),
            Family::W2a8Trits => w2a8_trits::choose_index(self.n, self.k),
            Family::W2a8Gemm => {
                let shape = [self.m as u32, self.n as u32, self.k as u32];
                w2a8_gemm::choose_index(shape, sms, [chained, false], has)
            }
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}x{} m={}", self.family, self.n, self.k, self.m)
    }
}

/// Variants to take, by problem. Where there is none the family's own rule decides.
///
/// And the matrices whose product with one row was measured to be faster with weights of 1.6 bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices(HashMap<Problem, usize>, HashSet<[usize; 2]>);

impl Choices {
    /// Takes `variant` for `problem` from now on.
    ///
    /// # Errors
    /// A variant that the family does not have, or that does not take the shape.
    pub fn insert(&mut self, problem: Problem, variant: usize) -> Result<(), OpError> {
        // The shape rule that depends on multiprocessors allows most on a device of one.
        if !problem.eligible(variant, 1) {
            return Err(OpError::Dimension {
                op: problem.family.name(),
                what: "variant",
                found: variant,
                allowed: "a choice names a compiled variant that takes the shape",
            });
        }
        self.0.insert(problem, variant);
        Ok(())
    }

    /// The variant for `m` rows by an `n` by `k` matrix.
    pub fn get(&self, family: Family, m: usize, n: usize, k: usize) -> Option<usize> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&Problem::of(family, m, n, k)?).copied()
    }

    /// Notes that an `n` by `k` matrix is faster at 1.6 bits a weight, or that it is not.
    pub fn prefer_trits(&mut self, n: usize, k: usize, faster: bool) {
        if faster {
            self.1.insert([n, k]);
        } else {
            self.1.remove(&[n, k]);
        }
    }

    /// Whether an `n` by `k` matrix was measured to be faster at 1.6 bits a weight.
    pub fn prefers_trits(&self, n: usize, k: usize) -> bool {
        self.1.contains(&[n, k])
    }

    /// The matrices that are faster at 1.6 bits a weight: `[n, k]`, in no particular order.
    pub fn trits(&self) -> impl Iterator<Item = [usize; 2]> {
        self.1.iter().copied()
    }

    /// All of them, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&Problem, usize)> {
        self.0.iter().map(|(problem, &variant)| (problem, variant))
    }

    /// Number of choices.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fall_into_the_smallest_class_that_holds_them() {
        let class = |m| Problem::of(Family::W2a8Gemm, m, 100, 100).map(|p| p.m());
        for (m, expected) in [(1, 8), (8, 8), (9, 16), (17, 24), (33, 48), (257, 384), (4096, 4096)]
        {
            assert_eq!(class(m), Some(expected), "m={m}");
        }
        assert_eq!(class(4097), None);
        assert_eq!(class(0), None);
        assert!(M_CLASSES.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn what_a_family_does_not_take_has_no_problem() {
        for family in [Family::BitLinear, Family::W2a8Gemv, Family::W2a8Trits] {
            assert!(Problem::of(family, 1, 1, 1).is_some());
            assert_eq!(Problem::of(family, 2, 1, 1), None, "one row only");
        }
        for (n, k) in [(0, 1), (1, 0), (MAX_ROWS + 1, 1), (1, MAX_K + 1)] {
            for family in Family::ALL {
                assert_eq!(Problem::of(family, 1, n, k), None, "{family} {n} {k}");
            }
        }
        assert_eq!(Problem::of(Family::BitLinear, 1, 1, contract::bit_linear::MAX_K + 1), None);
    }

    #[test]
    fn symbols_find_their_variant_and_defaults_are_eligible() {
        for family in Family::ALL {
            for index in 0..family.variants_len() {
                assert_eq!(family.find(family.symbol(index)), Some(index));
            }
            assert_eq!(family.find("softmax"), None);
            assert_eq!(family.symbol(family.variants_len()), "");
            for (n, k) in [(1, 1), (2560, 2560), (13_824, 2560), (2560, 6912), (70_000, 100)] {
                for m in [1, 9, 300] {
                    let Some(problem) = Problem::of(family, m, n, k) else { continue };
                    let default = problem.default_variant(132, true, |_| true);
                    assert!(problem.eligible(default, 132), "{problem}");
                }
            }
        }
    }

    #[test]
    fn a_choice_holds_for_its_shape_and_class_alone() {
        let mut choices = Choices::default();
        let problem = Problem::of(Family::W2a8Gemm, 20, 2560, 6912).unwrap();
        choices.insert(problem, 3).unwrap();
        assert_eq!(choices.get(Family::W2a8Gemm, 17, 2560, 6912), Some(3));
        assert_eq!(choices.get(Family::W2a8Gemm, 24, 2560, 6912), Some(3));
        for (m, n, k) in [(16, 2560, 6912), (25, 2560, 6912), (20, 2561, 6912), (20, 2560, 6911)] {
            assert_eq!(choices.get(Family::W2a8Gemm, m, n, k), None);
        }
        assert_eq!(choices.get(Family::W2a8Gemv, 1, 2560, 6912), None);
    }

    #[test]
    fn variants_that_do_not_exist_or_do_not_fit_are_refused() {
        let mut choices = Choices::default();
        for family in Family::ALL {
            let problem = Problem::of(family, 1, 10, 2561).unwrap();
            assert!(choices.insert(problem, family.variants_len()).is_err());
        }
        // The short form of bit_linear takes rows of up to 2,560.
        let long = Problem::of(Family::BitLinear, 1, 10, 2561).unwrap();
        assert!(choices.insert(long, 0).is_err());
        assert!(choices.is_empty());
    }
}
