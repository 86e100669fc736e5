//! Where text goes and how it looks.
//!
//! Nothing here panics when a pipe is closed: standard output reports it as an error, and what
//! cannot be said on standard error is left unsaid.

use serde::Serialize;
use std::env;
use std::io::{self, IsTerminal, Write};

/// The output settings of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// One JSON document on standard output.
    pub(crate) json: bool,
    /// No progress, no statistics.
    pub(crate) quiet: bool,
    color: bool,
}

impl Output {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        let set = |name| env::var_os(name).is_some_and(|v| !v.is_empty());
        let forced = env::var_os("CLICOLOR_FORCE").is_some_and(|v| !v.is_empty() && v != "0");
        let color = !set("NO_COLOR") && (forced || io::stderr().is_terminal());
        Self { json, quiet, color }
    }

    /// Whether progress may be drawn.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.quiet && !self.json && io::stderr().is_terminal()
    }

    /// Writes `text` and flushes, so that a reader sees every token at once.
    pub(crate) fn stream(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Writes a line.
    pub(crate) fn line(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()
    }

    /// Writes one JSON document.
    pub(crate) fn document(&self, value: &impl Serialize) -> io::Result<()> {
        let mut out = io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, value)?;
        writeln!(out)?;
        out.flush()
    }

    /// Writes a remark to standard error unless asked to be quiet.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// Writes an error: as three labelled parts, or as one line of JSON.
    pub(crate) fn error(&self, what: &str, because: &[String], advice: &str) {
        let mut err = io::stderr().lock();
        if self.json {
            let document = serde_json::json!({"error": what, "because": because, "try": advice});
            let _ = writeln!(err, "{document}");
            return;
        }
        let _ = writeln!(err, "{} {what}", self.paint("31;1", "error:"));
        for cause in because {
            let _ = writeln!(err, "{} {cause}", self.paint("1", "because:"));
        }
        if !advice.is_empty() {
            let _ = writeln!(err, "{} {advice}", self.paint("32;1", "try:"));
        }
    }

    /// `text` in a terminal style, when colours are on.
    pub(crate) fn paint(&self, style: &str, text: &str) -> String {
        if self.color { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A size for people: `5.98 GiB`.
pub(crate) fn human_bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.2} {}", units[unit]) }
}

/// A duration for people: `820 ms`, `3.14 s`.
pub(crate) fn human_seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} \u{b5}s", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_read_well() {
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(1536), "1.50 KiB");
        assert_eq!(human_bytes(u64::MAX), "16777216.00 TiB");
        assert_eq!(human_seconds(0.00042), "420 \u{b5}s");
        assert_eq!(human_seconds(0.5), "500.0 ms");
        assert_eq!(human_seconds(75.0), "75.00 s");
    }
}
