//! What the tests of all families share: running a case against its oracle, refusals, sizes.

use std::fmt::Display;

use bitnet_gpu::ops::{Backend, Element, OpError};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::selftest::{self, Output, Run, difference};

use crate::lane;

/// Makes a test of each function, on the shared backend of the lane.
macro_rules! on_lane {
    ($($test:ident)*) => {
        mod lane {
            $(#[test]
            fn $test() {
                super::$test(&*crate::lane::shared());
            })*
        }
    };
}
pub(crate) use on_lane;

/// Runs `case` over both poisons and holds every output against `expected`.
pub(crate) fn check<B: Backend>(
    backend: &B,
    case: &impl Run,
    expected: &[Output],
    what: impl Display,
) {
    let found = selftest::run(backend, case)
        .unwrap_or_else(|error| panic!("{what} on {}: {error}", backend.describe()));
    if let Some(first) = difference(&found, expected) {
        panic!("{what} on {}: {first}", backend.describe());
    }
}

/// Generated cases: [`GENERATED`], or what `BITNET_TEST_CASES` says.
pub(crate) fn generated(family: &str) -> usize {
    let count = cases().unwrap_or(GENERATED);
    println!("{family}: {count} generated cases");
    count
}

/// How often a test repeats itself: `full` times, or as often as `BITNET_TEST_CASES` says when that
/// is fewer. A sanitizer makes each launch a thousand times slower.
pub(crate) fn repeats(full: usize) -> usize {
    full.min(cases().unwrap_or(full))
}

/// Whether a test takes case `i` of a long list of combinations: always, but each `every`-th alone where
/// `BITNET_TEST_CASES` asks for a few. No divisor of what the list is made of, so that all of that is taken.
pub(crate) fn due(i: usize, every: usize) -> bool {
    repeats(16) == 16 || i.is_multiple_of(every)
}

/// As many rows, or parts of one, as go round the multiprocessors of a GPU: `full` with up to 152 of them, fewer, and an odd
/// number, where an emulated GPU has fewer.
pub(crate) fn around(full: usize) -> usize {
    match emulated_sms() {
        Some(count @ 1..132) => (full * count / 132) | 1,
        _ => full,
    }
}

/// Multiprocessors of an emulated GPU that was asked to have so many: it takes a thousand times as long.
pub(crate) fn emulated_sms() -> Option<usize> {
    std::env::var("BITNET_EMULATED_SMS").ok().and_then(|count| count.parse().ok())
}

fn cases() -> Option<usize> {
    let text = std::env::var("BITNET_TEST_CASES").ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("BITNET_TEST_CASES is {text:?}, not a number")))
}

/// Generated cases of a family, at least.
pub(crate) const GENERATED: usize = 256;

/// A size up to `end`, most often near what a word, a warp, a chunk or a tile holds.
pub(crate) fn size(seeded: &mut Seeded, end: usize) -> usize {
    const EDGES: [usize; 12] = [1, 4, 8, 16, 32, 64, 128, 256, 512, 640, 1024, 2048];
    let near = EDGES[seeded.below(EDGES.len())] * (1 + seeded.below(3)) + seeded.below(3);
    let size = match seeded.below(3) {
        0 => 1 + seeded.below(end),
        1 => 1 + seeded.below(end.min(70)),
        _ => near.saturating_sub(1),
    };
    size.clamp(1, end)
}

/// Asserts that `result` is a refusal of this kind, and that nothing was launched since `before`.
#[track_caller]
pub(crate) fn assert_refused(
    before: u64,
    result: Result<(), OpError>,
    expected: impl FnOnce(&OpError) -> bool,
) {
    let error = result.expect_err("this is not allowed");
    assert!(expected(&error), "another refusal was expected: {error}");
    assert_eq!(lane::launches(), before, "a refused operation launched something: {error}");
}

/// Refusal by a tensor of too few elements.
pub(crate) fn short(name: &str) -> impl FnOnce(&OpError) -> bool {
    move |error| matches!(error, OpError::ShortTensor { tensor, needed, found, .. } if *tensor == name && found < needed)
}

/// Refusal of a dimension or parameter.
pub(crate) fn dimension(name: &str) -> impl FnOnce(&OpError) -> bool {
    move |error| matches!(error, OpError::Dimension { what, .. } if *what == name)
}

/// Refuses an operation; `tensors` were made before, so that only the operation could launch.
macro_rules! refused {
    ($expected:expr, $run:expr) => {{
        let before = $crate::lane::launches();
        $crate::support::assert_refused(before, $run, $expected);
    }};
}
pub(crate) use refused;

/// A tensor of `len` zeros.
pub(crate) fn zeros<B: Backend, T: Element>(backend: &B, len: usize) -> B::Buf<T> {
    let mut buf = backend.alloc("test", len).expect("memory for a test");
    backend.fill(&mut buf, 0).expect("a fill");
    buf
}
