//! Results as JSON for programs and as Markdown for people.
//!
//! Both are written from the same rows. Files are named by device, date and benchmark; a later run
//! of the same day replaces them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

use crate::Quantiles;

/// Most columns of a table of cases without times; with more, cases become columns.
const WIDEST: usize = 8;

/// Where and how a report was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Conditions {
    /// Name of the GPU or CPU.
    pub device: String,
    /// Date in UTC.
    pub date: String,
    /// Version of this package.
    pub version: String,
    /// The command line.
    pub command: String,
    /// Everything else that can be said, by name: driver, CUDA version, PTX level and hash, clocks.
    #[serde(flatten)]
    pub more: BTreeMap<String, Value>,
}

/// What the same session could move, to compare with.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Control {
    /// GB/s (10^9 bytes) by what was done.
    pub gb_per_s: BTreeMap<String, f64>,
    /// The largest of them: what percentages refer to.
    pub best_gb_per_s: f64,
    /// Microseconds of the smallest kernel as a node of a graph; included in every time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_us: Option<f64>,
}

/// Times of one case in one regime, in microseconds for one call.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Timing {
    /// Median and spread over the samples.
    #[serde(flatten)]
    pub us: Quantiles,
    /// Calls in one graph.
    pub launches: usize,
    /// Distinct copies of the tensors that they rotate over.
    pub copies: usize,
    /// Timed replays of the graph.
    pub replays: usize,
    /// Bytes of the case over the median.
    pub gb_per_s: f64,
    /// The same as a percentage of the control.
    pub percent_of_control: f64,
}

/// One case.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// The shape.
    pub case: String,
    /// Which kernel, where there are several.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub variant: String,
    /// Bytes of one call.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes: u64,
    /// Values that were compared with the CPU backend, bit for bit, before timing.
    #[serde(skip_serializing_if = "is_zero")]
    pub compared: u64,
    /// Tensors from device memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold: Option<Timing>,
    /// The same tensors each time, in the cache where they fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm: Option<Timing>,
    /// Further columns.
    #[serde(flatten)]
    pub columns: BTreeMap<String, Value>,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Row {
    /// Adds a column of this row.
    pub fn set(&mut self, column: &str, value: impl Into<Value>) {
        self.columns.insert(column.to_owned(), value.into());
    }
}

/// One run of one benchmark.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Form of this file.
    pub schema: u32,
    /// Name of the benchmark.
    pub bench: String,
    /// Where and how.
    pub conditions: Conditions,
    /// What it is compared with.
    pub control: Control,
    /// Notes that the reader of the figures needs.
    pub notes: Vec<String>,
    /// The cases.
    pub rows: Vec<Row>,
}

impl Report {
    /// An empty report of `bench` on `device`.
    pub fn new(bench: &str, device: &str) -> Self {
        let conditions = Conditions {
            device: device.to_owned(),
            date: crate::host::today(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: command(),
            more: BTreeMap::new(),
        };
        Self { schema: 1, bench: bench.to_owned(), conditions, ..Self::default() }
    }

    /// The report as a page.
    pub fn markdown(&self) -> String {
        let Conditions { device, date, version, command, more } = &self.conditions;
        let mut page = format!("# {} on {device}\n\n", self.bench);
        let _ = writeln!(page, "{date}, bitnet-gpu {version}, `{command}`\n");
        for (name, value) in more {
            let _ = writeln!(page, "* {name}: {}", text(value));
        }
        for (name, rate) in &self.control.gb_per_s {
            let _ = writeln!(page, "* control, {name}: {} GB/s", figure(*rate));
        }
        if let Some(node_us) = self.control.node_us {
            let _ = writeln!(page, "* smallest kernel as a graph node: {node_us:.2} us");
        }
        for note in &self.notes {
            let _ = writeln!(page, "* {note}");
        }
        page.push('\n');
        page.push_str(&self.table());
        page
    }

    /// The rows as a Markdown table. Columns that no row has are left out.
    pub fn table(&self) -> String {
        let mut heads = vec!["case".to_owned()];
        let variants = self.rows.iter().any(|row| !row.variant.is_empty());
        let regimes: Vec<_> = [("cold", true), ("warm", false)]
            .into_iter()
            .filter(|&(_, cold)| self.rows.iter().any(|row| row.regime(cold).is_some()))
            .collect();
        if variants {
            heads.push("variant".into());
        }
        for (name, _) in &regimes {
            heads.extend([
                format!("{name} us"),
                format!("{name} p10 to p90"),
                format!("{name} GB/s"),
                format!("{name} %"),
            ]);
        }
        let extra: BTreeSet<&String> =
            self.rows.iter().flat_map(|row| row.columns.keys()).collect();
        if regimes.is_empty() && extra.len() > WIDEST {
            return self.transposed(&extra);
        }
        heads.extend(extra.iter().map(|name| name.replace('_', " ")));
        let mut table = format!("| {} |\n|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
        for row in &self.rows {
            let mut cells = vec![row.case.clone()];
            if variants {
                cells.push(row.variant.clone());
            }
            for &(_, cold) in &regimes {
                match row.regime(cold) {
                    Some(t) => cells.extend([
                        figure(t.us.median),
                        format!("{} to {}", figure(t.us.p10), figure(t.us.p90)),
                        figure(t.gb_per_s),
                        format!("{:.0}", t.percent_of_control),
                    ]),
                    None => cells.extend(["", "", "", ""].map(String::from)),
                }
            }
            cells.extend(extra.iter().map(|&name| row.columns.get(name).map_or("".into(), text)));
            let _ = writeln!(table, "| {} |", cells.join(" | "));
        }
        table
    }

    /// The rows as columns.
    fn transposed(&self, names: &BTreeSet<&String>) -> String {
        let line = |cells: &mut dyn Iterator<Item = String>| {
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        let cases = self.rows.iter().map(|row| row.case.clone());
        let mut table = line(&mut std::iter::once(String::new()).chain(cases));
        let _ = writeln!(table, "|{}", "---|".repeat(self.rows.len() + 1));
        for &name in names {
            let cell = |row: &Row| row.columns.get(name).map_or(String::new(), text);
            let cells = self.rows.iter().map(cell);
            table += &line(&mut std::iter::once(name.replace('_', " ")).chain(cells));
        }
        table
    }

    /// Writes both files into `dir` and returns their paths.
    ///
    /// # Errors
    /// A folder or file that cannot be written.
    pub fn write(&self, dir: &Path) -> anyhow::Result<[PathBuf; 2]> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let stem =
            format!("{}-{}-{}", slug(&self.conditions.device), self.conditions.date, self.bench);
        let files = ["json", "md"].map(|end| dir.join(format!("{stem}.{end}")));
        let json = serde_json::to_string_pretty(self)? + "\n";
        for (path, text) in files.iter().zip([json, self.markdown()]) {
            std::fs::write(path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(files)
    }
}

impl Row {
    fn regime(&self, cold: bool) -> Option<&Timing> {
        if cold { self.cold.as_ref() } else { self.warm.as_ref() }
    }
}

/// A number with about three digits that mean something.
fn figure(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// A value as a table shows it.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => figure(number.as_f64().unwrap_or_default()),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{name} {}", text(value)));
            fields.collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

/// The command line, with the program by its name only.
fn command() -> String {
    let mut args = std::env::args();
    let program = args.next().unwrap_or_default();
    let name = Path::new(&program).file_name().map(|n| n.to_string_lossy().into_owned());
    let name = name.map(|name| without_hash(&name).to_owned());
    name.into_iter().chain(args).collect::<Vec<_>>().join(" ")
}

/// A program's name without the hash that cargo puts behind it.
fn without_hash(name: &str) -> &str {
    match name.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            name
        }
        _ => name,
    }
}

/// A device name as a part of a file name.
fn slug(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let us = Quantiles { median: 2.0, p10: 1.5, p90: 2.5 };
        let cold = Timing {
            us,
            launches: 40,
            copies: 20,
            replays: 30,
            gb_per_s: 1234.5,
            percent_of_control: 61.7,
        };
        let mut report = Report::new("w2a8_gemv", "NVIDIA H200");
        report.conditions.date = "2026-01-02".into();
        let mut row = Row { case: "3x64".into(), cold: Some(cold), ..Row::default() };
        row.set("ratio", 1.5);
        report.rows = vec![row, Row { case: "5x64".into(), ..Row::default() }];
        report
    }

    #[test]
    fn a_table_has_the_columns_that_were_measured() {
        assert_eq!(
            report().table(),
            "| case | cold us | cold p10 to p90 | cold GB/s | cold % | ratio |\n\
             |---|---|---|---|---|---|\n\
             | 3x64 | 2.00 | 1.50 to 2.50 | 1234 | 62 | 1.50 |\n\
             | 5x64 |  |  |  |  |  |\n"
        );
    }

    #[test]
    fn programs_are_named_without_cargos_hash() {
        assert_eq!(without_hash("w2a8_gemv-31805133a7586529"), "w2a8_gemv");
        assert_eq!(without_hash("bench-w2a8_gemv"), "bench-w2a8_gemv");
        assert_eq!(without_hash("cpu"), "cpu");
    }

    #[test]
    fn many_figures_of_few_cases_stand_below_each_other() {
        let mut report = Report::new("tokens_per_second", "GPU");
        for case in ["graph", "no graph"] {
            let mut row = Row { case: case.into(), ..Row::default() };
            (0..=WIDEST).for_each(|i| row.set(&format!("figure_{i}"), i as f64));
            report.rows.push(row);
        }
        let table = report.table();
        assert!(
            table.starts_with(
                "|  | graph | no graph |\n|---|---|---|\n| figure 0 | 0.00 | 0.00 |\n"
            )
        );
        assert_eq!(table.lines().count(), WIDEST + 3);
    }

    #[test]
    fn files_are_named_by_device_date_and_benchmark_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let [json, md] = report().write(&dir.path().join("new")).unwrap();
        assert!(json.ends_with("new/nvidia-h200-2026-01-02-w2a8_gemv.json"));
        let value: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        assert_eq!(value["rows"][0]["cold"]["median"], 2.0);
        assert_eq!(value["rows"][0]["ratio"], 1.5);
        assert_eq!(value["conditions"]["device"], "NVIDIA H200");
        assert!(std::fs::read_to_string(md).unwrap().starts_with("# w2a8_gemv on NVIDIA H200\n"));
    }
}
