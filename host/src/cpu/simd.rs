//! Which vector instructions run: found at run time, or asked for by name.
//!
//! A [`Simd`] can only be made for what this machine has, so that holding one is the proof that
//! its instructions may be called. All levels give the same bits; they differ in speed.

use thiserror::Error;

/// A set of instructions that operations have code for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Level {
    /// What every machine of the target has.
    Scalar,
    /// x86-64: AVX2, FMA and F16C.
    Avx2,
    /// The same with AVX-VNNI's 256-bit byte dots.
    AvxVnni,
    /// x86-64: AVX-512 F, BW, DQ, VL and VNNI.
    Avx512Vnni,
    /// AArch64 vectors.
    Neon,
}

impl Level {
    /// All levels, the fastest last.
    pub const ALL: [Self; 5] =
        [Self::Scalar, Self::Neon, Self::Avx2, Self::AvxVnni, Self::Avx512Vnni];

    /// The name that options and variables use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Neon => "neon",
        }
    }

    /// Whether this machine has it.
    pub fn supported(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => has_avx2() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => {
                has_avx2()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[allow(unreachable_patterns, reason = "the levels of other targets")]
            _ => false,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// A level that was asked for and cannot run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SimdError {
    /// No level has this name.
    #[error("`{found}` is no vector level; known: {known}")]
    Unknown {
        /// What was asked for.
        found: String,
        /// The names there are.
        known: String,
    },
    /// The machine lacks it.
    #[error("this machine has no {asked}; it has {available}")]
    Unsupported {
        /// What was asked for.
        asked: &'static str,
        /// What would run.
        available: String,
    },
}

/// A level that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Simd(Level);

impl Simd {
    /// The plain code.
    pub const SCALAR: Self = Self(Level::Scalar);

    /// The fastest level of this machine.
    pub fn detect() -> Self {
        Self::available().last().unwrap_or(Self::SCALAR)
    }

    /// Every level of this machine, the fastest last.
    pub fn available() -> impl Iterator<Item = Self> {
        Level::ALL.into_iter().filter(|level| level.supported()).map(Self)
    }

    /// `level`, if this machine has it.
    ///
    /// # Errors
    /// It has not.
    pub fn new(level: Level) -> Result<Self, SimdError> {
        if level.supported() {
            return Ok(Self(level));
        }
        let available = names(Self::available().map(Self::level));
        Err(SimdError::Unsupported { asked: level.name(), available })
    }

    /// The level named `name`, if this machine has it.
    ///
    /// # Errors
    /// There is no such level, or the machine lacks it.
    pub fn by_name(name: &str) -> Result<Self, SimdError> {
        let level = Level::ALL.into_iter().find(|level| level.name() == name);
        let unknown = || SimdError::Unknown { found: name.to_owned(), known: names(Level::ALL) };
        Self::new(level.ok_or_else(unknown)?)
    }

    /// Which one it is.
    pub const fn level(self) -> Level {
        self.0
    }
}

fn names(levels: impl IntoIterator<Item = Level>) -> String {
    levels.into_iter().map(Level::name).collect::<Vec<_>>().join(", ")
}

/// Makes a function that takes a [`Simd`] first and runs its body compiled with that level's
/// instructions, so that its loops vectorise and its `fma` is one instruction.
///
/// The function may have type parameters. Only what is inlined into the body is compiled so: what
/// it calls must be `#[inline(always)]`.
macro_rules! vectorised {
    ($(#[$doc:meta])* $vis:vis fn $name:ident $(<$($t:ident: $bound:path),+>)?
        ($($arg:ident: $ty:ty),* $(,)?) $(-> $out:ty)? $body:block) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments, reason = "the tensors of a contract, in its order")]
        $vis fn $name $(<$($t: $bound),+>)? (simd: $crate::cpu::Simd, $($arg: $ty),*) $(-> $out)? {
            #[inline(always)]
            fn plain $(<$($t: $bound),+>)? ($($arg: $ty),*) $(-> $out)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2 $(<$($t: $bound),+>)? ($($arg: $ty),*) $(-> $out)? {
                plain$(::<$($t),+>)?($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512 $(<$($t: $bound),+>)? ($($arg: $ty),*) $(-> $out)? {
                plain$(::<$($t),+>)?($($arg),*)
            }

            match simd.level() {
                // SAFETY: a `Simd` of these levels exists only where `Level::supported` found
                // AVX2, FMA and F16C.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::Level::Avx2 | $crate::cpu::Level::AvxVnni => unsafe {
                    avx2$(::<$($t),+>)?($($arg),*)
                },
                // SAFETY: likewise for the AVX-512 features.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::Level::Avx512Vnni => unsafe { avx512$(::<$($t),+>)?($($arg),*) },
                _ => plain$(::<$($t),+>)?($($arg),*),
            }
        }
    };
}
pub(super) use vectorised;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_found_by_name_or_refused() {
        assert_eq!(Simd::by_name("scalar"), Ok(Simd::SCALAR));
        assert!(Simd::available().any(|s| s == Simd::detect()));
        for simd in Simd::available() {
            assert_eq!(Simd::by_name(simd.level().name()), Ok(simd));
        }
        let unknown = Simd::by_name("mmx").expect_err("no such level").to_string();
        assert!(unknown.contains("mmx") && unknown.contains("avx2"), "{unknown}");
        let foreign = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
        let refused = Simd::by_name(foreign).expect_err("other machine").to_string();
        assert!(refused.contains(foreign) && refused.contains("scalar"), "{refused}");
    }
}
