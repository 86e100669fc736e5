//! What the benchmarks share.
//!
//! A benchmark describes its work as a [`Case`]: the operation's tensors and the one call of the
//! public op, generic over the backend. The harness does the rest, in this order: the same case runs
//! on the CPU backend and on the GPU, and a bit that differs refuses the timing; then replays of a
//! CUDA graph are timed with events, with weights that come from memory (*cold*) and from the cache
//! (*warm*); then the figures stand beside what the same session could read or copy per second, in
//! JSON and in Markdown. A program ends with an error where there is no GPU.

mod case;
mod host;
mod inputs;
mod lookup;
mod options;
#[cfg(feature = "cuda")]
mod peers;
mod report;
mod statistics;
#[cfg(feature = "cuda")]
mod suite;

pub use case::{Case, bits, blank, rows_of, type_name, upload};
pub use host::{Memory, cpu_name, load_average, memory, read_gb_per_s, reset_memory_peak};
pub use inputs::{Linear, LinearTensors, acts, bf16_bytes, floats, packed_words, uniform};
pub use lookup::{Arm, Lookup, LookupTensors, Weights};
pub use options::Options;
pub use report::{Conditions, Control, Report, Row, Timing};
pub use statistics::Quantiles;
#[cfg(feature = "cuda")]
pub use suite::{Suite, run};

/// Bits of the two backends that should be the same.
///
/// # Errors
/// The first value that differs, and how many do.
pub fn same_bits(what: &str, found: &[u32], expected: &[u32]) -> anyhow::Result<()> {
    if found.len() != expected.len() {
        anyhow::bail!("{what}: {} values from the GPU, {} expected", found.len(), expected.len());
    }
    let differing = found.iter().zip(expected).filter(|(a, b)| a != b).count();
    if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
        anyhow::bail!(
            "{what}: {differing} of {} values differ from the CPU backend, the first at {at}: \
             {:#010x} on the GPU, {:#010x} expected; not timed",
            found.len(),
            found[at],
            expected[at],
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_differing_bit_is_found_and_located() {
        assert!(same_bits("x", &[1, 2, 3], &[1, 2, 3]).is_ok());
        let text = same_bits("x", &[1, 7, 3, 9], &[1, 2, 3, 4]).unwrap_err().to_string();
        assert!(text.contains("2 of 4") && text.contains("first at 1"), "{text}");
        assert!(same_bits("x", &[1], &[1, 2]).is_err());
    }
}
