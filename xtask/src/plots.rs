//! `cargo xtask plots`: the figures of benches/results as SVG, beside them.
//!
//! Two plots a device, of whatever its newest results hold: the roofline of the W2A8 products, and
//! tokens a second by context and by batch. `bench` draws them anew after its run.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use plotters::prelude::*;
use serde_json::Value;

use crate::workspace;

const SIZE: (u32, u32) = (900, 560);
const COLOURS: [RGBColor; 6] = [
    RGBColor(27, 94, 161),
    RGBColor(209, 92, 24),
    RGBColor(38, 133, 76),
    RGBColor(132, 60, 150),
    RGBColor(110, 110, 110),
    RGBColor(173, 32, 52),
];

/// A named row of points.
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

/// Draws the plots of every device that has results.
pub(crate) fn run() -> Result<()> {
    let folder = workspace::root().join("benches/results");
    for (device, results) in newest(&folder)? {
        for (name, drawn) in [
            ("roofline", roofline(&folder, &device, &results)?),
            ("tokens_per_second", tokens(&folder, &device, &results)?),
        ] {
            match drawn {
                Some(path) => println!("wrote {}", path.display()),
                None => println!("{device}: no results for the plot of {name}"),
            }
        }
    }
    Ok(())
}

/// Of each device the newest result of each benchmark: `DEVICE-YYYY-MM-DD-BENCH.json`.
fn newest(folder: &Path) -> Result<BTreeMap<String, BTreeMap<String, Value>>> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .with_context(|| folder.display().to_string())?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    // By name is by date, so that a newer one takes the place of an older one.
    names.sort();
    let mut devices: BTreeMap<String, BTreeMap<String, Value>> = BTreeMap::new();
    for name in names {
        let Some((device, bench)) = name.strip_suffix(".json").and_then(parts) else { continue };
        let text = std::fs::read_to_string(folder.join(&name)).context(name.clone())?;
        let value: Value = serde_json::from_str(&text).context(name.clone())?;
        devices.entry(device.into()).or_default().insert(bench.into(), value);
    }
    Ok(devices)
}

/// Device and benchmark in the stem of a result's name.
fn parts(stem: &str) -> Option<(&str, &str)> {
    let is_date = |at: usize| {
        let date = stem.get(at..at + 12)?.as_bytes();
        let digits = [1, 2, 3, 4, 6, 7, 9, 10].iter().all(|&i| date[i].is_ascii_digit());
        (digits && [0, 5, 8, 11].iter().all(|&i| date[i] == b'-')).then_some(at)
    };
    let at = (0..stem.len()).find_map(is_date)?;
    Some((&stem[..at], &stem[at + 12..]))
}

fn rows(results: &BTreeMap<String, Value>, bench: &str) -> impl Iterator<Item = Value> {
    let rows = results.get(bench).and_then(|result| result["rows"].as_array());
    rows.cloned().unwrap_or_default().into_iter()
}

/// Operations a second over operations a byte, under what the memory gives.
fn roofline(
    folder: &Path,
    device: &str,
    results: &BTreeMap<String, Value>,
) -> Result<Option<PathBuf>> {
    let mut series = Vec::new();
    for (bench, temperature) in
        [("w2a8_gemv", "cold"), ("w2a8_gemv", "warm"), ("w2a8_gemm", "cold"), ("w2a8_gemm", "warm")]
    {
        let points: Vec<_> =
            rows(results, bench).filter_map(|row| work(&row, temperature)).collect();
        if !points.is_empty() {
            series.push(Series { name: format!("{bench}, {temperature}"), points });
        }
    }
    let control = ["w2a8_gemv", "w2a8_gemm"]
        .iter()
        .find_map(|&bench| results.get(bench)?["control"]["best_gb_per_s"].as_f64());
    let (Some(bandwidth), false) = (control, series.is_empty()) else { return Ok(None) };
    let all = || series.iter().flat_map(|s| &s.points);
    let (left, right) = span(all().map(|p| p.0));
    let (low, high) = span(all().map(|p| p.1));
    let (left, right, low) = (left / 1.5, right * 1.5, low / 2.0);
    // Operations a byte times GB/s are 10^9 a second.
    let roof = |x: f64| x * bandwidth / 1e3;
    let high = high.max(roof(left)) * 3.0;
    let memory = Series {
        name: format!("measured read bandwidth, {bandwidth:.0} GB/s"),
        points: [left, right.min(high * 1e3 / bandwidth)].map(|x| (x, roof(x))).into(),
    };
    let path = folder.join(format!("{device}-roofline.svg"));
    draw(
        &path,
        &format!("W2A8 products on {device}"),
        ["int8 operations for each byte of global memory", "10^12 int8 operations a second"],
        [left..right, low..high],
        &[memory],
        &series,
    )?;
    Ok(Some(path))
}

/// Operations a byte and 10^12 operations a second of a row whose case is `NxK` or `MxNxK`.
fn work(row: &Value, temperature: &str) -> Option<(f64, f64)> {
    let sides: Vec<f64> =
        row["case"].as_str()?.split('x').map(|side| side.parse().ok()).collect::<Option<_>>()?;
    let us = row[temperature]["median"].as_f64().filter(|&us| us > 0.0)?;
    let bytes = row["bytes"].as_f64().filter(|&bytes| bytes > 0.0)?;
    let operations = 2.0 * sides.iter().product::<f64>();
    Some((operations / bytes, operations / us / 1e6))
}

/// Tokens a second of one sequence by context, and of all together by batch, on one pair of axes.
fn tokens(
    folder: &Path,
    device: &str,
    results: &BTreeMap<String, Value>,
) -> Result<Option<PathBuf>> {
    let mut series: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows(results, "tokens_per_second") {
        let (Some(case), Some(object)) = (row["case"].as_str(), row.as_object()) else { continue };
        if let Some((batch, head)) = batch_of(case) {
            if let Some(rate) = row["batch_tok_per_s"].as_f64() {
                series
                    .entry(format!("all of a batch{head}, by batch"))
                    .or_default()
                    .push((batch, rate));
            }
            continue;
        }
        if !case.starts_with("graph, PDL") {
            continue;
        }
        let name = format!("one sequence{}, by context", &case["graph, PDL".len()..]);
        for (key, value) in object {
            if let (Some(to), Some(rate)) = (context_of(key), value.as_f64()) {
                series.entry(name.clone()).or_default().push((to, rate));
            }
        }
    }
    let series: Vec<Series> = series
        .into_iter()
        .map(|(name, mut points)| {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series { name, points }
        })
        .collect();
    if series.is_empty() {
        return Ok(None);
    }
    let all = || series.iter().flat_map(|s| &s.points);
    let (left, right) = span(all().map(|p| p.0));
    let (low, high) = span(all().map(|p| p.1));
    let path = folder.join(format!("{device}-tokens_per_second.svg"));
    draw(
        &path,
        &format!("BitNet 2B-4T on {device}, greedy"),
        ["positions in the cache, or sequences in the batch", "tokens a second"],
        [left / 1.2..right * 1.2, low / 1.5..high * 3.0],
        &series,
        &series,
    )?;
    Ok(Some(path))
}

/// The last position of `decode_greedy_A_to_B_tok_per_s`; not of the span that is the others' sum.
fn context_of(key: &str) -> Option<f64> {
    let span = key.strip_prefix("decode_greedy_")?.strip_suffix("_tok_per_s")?;
    let to = span.rsplit("to_").next().filter(|_| span != "16_to_512")?;
    to.parse().ok()
}

/// The sequences of the case `batch N`, and what follows the number.
fn batch_of(case: &str) -> Option<(f64, &str)> {
    let rest = case.strip_prefix("batch ")?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((rest[..end].parse().ok()?, &rest[end..]))
}

fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(low, high), v| (low.min(v), high.max(v)))
}

/// A plot on logarithmic axes: lines through the points of `lines`, dots at those of `dots`.
fn draw(
    path: &Path,
    caption: &str,
    labels: [&str; 2],
    [x, y]: [Range<f64>; 2],
    lines: &[Series],
    dots: &[Series],
) -> Result<()> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(caption, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(x.log_scale(), y.log_scale())?;
    let number = |v: &f64| if *v < 1.0 { format!("{v:.2}") } else { format!("{v:.0}") };
    chart
        .configure_mesh()
        .x_desc(labels[0])
        .y_desc(labels[1])
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .light_line_style(RGBColor(238, 238, 238))
        .draw()?;
    let mut colours: Vec<&str> = Vec::new();
    for series in lines.iter().chain(dots) {
        let known = colours.iter().position(|&name| name == series.name);
        let index = known.unwrap_or(colours.len());
        let colour = COLOURS[index % COLOURS.len()];
        let is_line = known.is_none() && lines.iter().any(|line| line.name == series.name);
        if is_line {
            chart.draw_series(LineSeries::new(
                series.points.iter().copied(),
                colour.stroke_width(2),
            ))?;
        } else {
            let dots = series.points.iter().map(|&at| Circle::new(at, 3, colour.filled()));
            chart.draw_series(dots)?;
        }
        if known.is_none() {
            colours.push(&series.name);
            // The legend stands on a series of its own: one without points.
            chart
                .draw_series(LineSeries::new(std::iter::empty(), colour))?
                .label(series.name.clone())
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 4), (x + 14, y + 4)], colour.filled())
                });
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(RGBColor(200, 200, 200))
        .draw()?;
    area.present().with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_device_and_benchmark_around_its_date() {
        assert_eq!(parts("nvidia-h200-2026-11-20-w2a8_gemv"), Some(("nvidia-h200", "w2a8_gemv")));
        for stem in ["", "nvidia-h200", "2026-11-20", "é-2026-1-20-x", "a-2026-11-20"] {
            assert_eq!(parts(stem), None, "{stem}");
        }
    }

    #[test]
    fn spans_of_contexts_that_are_no_sums() {
        assert_eq!(context_of("decode_greedy_16_to_128_tok_per_s"), Some(128.0));
        assert_eq!(context_of("decode_greedy_256_to_512_tok_per_s"), Some(512.0));
        assert_eq!(context_of("decode_greedy_to_4096_tok_per_s"), Some(4096.0));
        for key in ["decode_greedy_16_to_512_tok_per_s", "decode_sampled_16_to_128_tok_per_s", "x"]
        {
            assert_eq!(context_of(key), None, "{key}");
        }
        assert_eq!(batch_of("batch 32, int8 head"), Some((32.0, ", int8 head")));
        assert_eq!(batch_of("graph"), None);
    }

    #[test]
    fn a_product_is_under_the_roof_of_its_bytes() {
        let row = serde_json::json!({
            "case": "8x100x1000", "bytes": 16_000, "cold": { "median": 2.0 },
        });
        assert_eq!(work(&row, "cold"), Some((100.0, 0.8)));
        assert_eq!(work(&row, "warm"), None);
        assert_eq!(work(&serde_json::json!({ "case": "a row" }), "cold"), None);
    }

    #[test]
    fn results_become_plots() {
        let folder = std::env::temp_dir().join(format!("plots-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let gemv = serde_json::json!({
            "control": { "best_gb_per_s": 4000.0 },
            "rows": [{ "case": "100x1000", "bytes": 30_000, "cold": { "median": 2.0 } }],
        });
        let tokens_per_second = serde_json::json!({ "rows": [
            { "case": "graph, PDL", "decode_greedy_16_to_128_tok_per_s": 1000.0 },
            { "case": "batch 8", "batch_tok_per_s": 9000.0 },
        ] });
        for (bench, value) in [("w2a8_gemv", gemv), ("tokens_per_second", tokens_per_second)] {
            let path = folder.join(format!("gpu-2026-01-02-{bench}.json"));
            std::fs::write(path, value.to_string()).expect("a file");
        }
        let devices = newest(&folder).expect("results");
        let results = &devices["gpu"];
        for drawn in [roofline(&folder, "gpu", results), tokens(&folder, "gpu", results)] {
            let path = drawn.expect("no error").expect("a plot");
            let svg = std::fs::read_to_string(path).expect("a file");
            assert!(svg.starts_with("<svg") && svg.contains("<circle"), "{svg}");
        }
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
