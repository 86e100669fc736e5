//! What the machine says about itself: the date, memory of this process, clocks of the GPU, name and
//! reading speed of the CPU.
//!
//! All of it is for the record: what cannot be read is left out, never guessed.

#[cfg(feature = "cuda")]
use std::process::{Command, Stdio};
use std::thread::{self, available_parallelism};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Memory of this process in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// Largest resident size since the start or since [`reset_memory_peak`], pages of mapped files
    /// included.
    pub peak_bytes: u64,
    /// Resident now.
    pub resident_bytes: u64,
    /// Resident now, without pages of mapped files.
    pub anonymous_bytes: u64,
}

/// Reads `/proc/self/status`; `None` where there is none.
pub fn memory() -> Option<Memory> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(1024 * line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?)
    };
    Some(Memory {
        peak_bytes: field("VmHWM:")?,
        resident_bytes: field("VmRSS:")?,
        anonymous_bytes: field("RssAnon:")?,
    })
}

/// Lets the peak start again from the present size. False where the system has no such thing: the
/// peak is then that of the whole process.
pub fn reset_memory_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// How many programs wanted to run in the last minute; `None` where the system does not say.
pub fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// The date in UTC, as `YYYY-MM-DD`.
pub(crate) fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = civil(since.as_secs() / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Year, month and day of a number of days since 1970-01-01.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 0;
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, days + 1)
}

#[cfg(feature = "cuda")]
/// Clocks, power and temperature now, as `nvidia-smi` has them: the names of its fields and their
/// values. Empty without it.
pub(crate) fn clocks(uuid: &str) -> Vec<(String, String)> {
    let fields = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.draw,\
                  power.limit,temperature.gpu,utilization.gpu";
    let output = Command::new("nvidia-smi")
        .args(["-i", uuid, "--format=csv,noheader,nounits"])
        .arg(format!("--query-gpu={fields}"))
        .stderr(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let values = text.trim().split(',').map(|v| v.trim().to_owned());
            fields.split(',').map(str::to_owned).zip(values).collect()
        }
        _ => Vec::new(),
    }
}

/// GB/s of the best of twelve sums over a buffer of `bytes`, on `threads` threads.
pub fn read_gb_per_s(bytes: usize, threads: usize) -> f64 {
    let words = vec![1u64; bytes / 8];
    let pass = || {
        let started = Instant::now();
        thread::scope(|scope| {
            for part in words.chunks(words.len().div_ceil(threads.max(1))) {
                scope.spawn(move || {
                    // Eight chains, so that the adds do not wait for each other.
                    let mut sums = [0u64; 8];
                    for line in part.chunks_exact(8) {
                        for (sum, word) in sums.iter_mut().zip(line) {
                            *sum = sum.wrapping_add(*word);
                        }
                    }
                    std::hint::black_box(sums)
                });
            }
        });
        bytes as f64 / started.elapsed().as_secs_f64() / 1e9
    };
    (0..12).map(|_| pass()).fold(0.0, f64::max)
}

/// The processor's name, as the system has it, and its threads.
pub fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("model name"));
    let name = line.and_then(|rest| rest.split_once(':')).map(|(_, name)| name.trim().to_owned());
    let cores = available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    format!("{} {cores} threads", name.unwrap_or_else(|| std::env::consts::ARCH.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(58), (1970, 2, 28));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_453), (2025, 12, 31));
        assert_eq!(civil(20_454), (2026, 1, 1));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_of_this_process_is_read() {
        let memory = memory().unwrap();
        assert!(memory.peak_bytes >= memory.resident_bytes);
        assert!(memory.resident_bytes >= memory.anonymous_bytes && memory.anonymous_bytes > 4096);
    }
}
