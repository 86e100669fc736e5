//! Tuning: which variant of a kernel is the fastest for a shape on the device at hand.
//!
//! | file     | holds                                                            |
//! |----------|------------------------------------------------------------------|
//! | `search` | check, time, choose: the search for one problem                  |
//! | `record` | results as a file, and what is refused                           |
//! | `store`  | where files stand; the shipped ones                              |
//! | `measure`| the search on a GPU                                              |
//!
//! Every variant of a family gives the same bits, and the search compares them before it times anything, so
//! tuning changes times and never results. Without a record the families' own rules choose. A record holds for
//! the device and the PTX that it was measured with; one of others is left out with a remark.

#[cfg(feature = "cuda")]
mod measure;
pub mod record;
pub mod search;
pub mod store;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

#[cfg(feature = "cuda")]
pub use measure::tune;
pub use record::{DeviceKey, Entry, Record};
pub use store::StoreError;

use crate::checkpoint::{ModelConfig, Proj};
use crate::ops::OpError;
use crate::ops::choices::{Family, M_CLASSES, Problem};

/// Which records a session takes its choices from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tuning {
    /// Those shipped for the device, then those in the user's folder. Files that are broken or of other
    /// devices and kernels are left out with a remark.
    #[default]
    Auto,
    /// None: the families' own rules choose.
    Off,
    /// This file alone; it has to be a record of this device and these kernels.
    File(PathBuf),
}

/// Which choices are in force, and why others are not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TuningState {
    /// Problems whose variant was measured; the sum of several devices.
    pub choices: usize,
    /// Where they come from.
    pub sources: Vec<String>,
    /// What was left out.
    pub notes: Vec<String>,
}

impl TuningState {
    /// What is in force on several devices together.
    #[cfg(feature = "cuda")]
    pub(crate) fn of_all(states: Vec<Self>) -> Self {
        let mut all = Self::default();
        for state in states {
            all.choices += state.choices;
            all.sources.extend(state.sources);
            all.notes.extend(state.notes);
        }
        // Alike on devices that are alike.
        let mut seen = std::collections::BTreeSet::new();
        all.sources.retain(|source| seen.insert(source.clone()));
        seen.clear();
        all.notes.retain(|note| seen.insert(note.clone()));
        all
    }
}

/// Why tuning failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// A record.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record that was asked for by name and is not of this device or these kernels.
    #[error("{} cannot be used here: {why}; run `bitnet tune` again, or leave the file out", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The device.
    #[error(transparent)]
    Op(#[from] OpError),
}

/// A layer of ternary weights, as far as tuning is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// Rows of weights.
    pub n: usize,
    /// Elements of a row.
    pub k: usize,
}

/// The layers of a model, each shape once.
pub fn shapes(config: &ModelConfig) -> Vec<Shape> {
    let rows = |projs: &[Proj]| projs.iter().map(|&proj| config.linear_shape(proj).0).sum();
    let fused: [&[Proj]; 4] =
        [&[Proj::Q, Proj::K, Proj::V], &[Proj::O], &[Proj::Gate, Proj::Up], &[Proj::Down]];
    let mut shapes: Vec<_> = fused
        .map(|projs| Shape { n: rows(projs), k: config.linear_shape(projs[0]).1 })
        .into_iter()
        .collect();
    shapes.sort();
    shapes.dedup();
    shapes
}

/// What there is to choose for layers of these shapes and steps of up to `max_rows` rows: shape by shape, single
/// rows first.
pub fn problems(shapes: &[Shape], max_rows: usize) -> Vec<Problem> {
    // Up to the class that holds the largest step.
    let classes = M_CLASSES.partition_point(|&class| class < max_rows) + 1;
    let rows = |family| match family {
        Family::W2a8Gemm => &M_CLASSES[..classes.min(M_CLASSES.len())],
        Family::BitLinear | Family::W2a8Gemv | Family::W2a8Trits => &[1],
    };
    let of = |&Shape { n, k }: &Shape| {
        Family::ALL.into_iter().flat_map(move |family| {
            rows(family).iter().filter_map(move |&m| Problem::of(family, m, n, k))
        })
    };
    shapes.iter().flat_map(of).collect()
}

/// What to tune, and how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// GPU, after `CUDA_VISIBLE_DEVICES`.
    pub ordinal: u32,
    /// Rows of activations of the largest step.
    pub max_rows: usize,
    /// Measure again what the record has already.
    pub again: bool,
    /// No problem is begun after this time.
    pub budget: Duration,
    /// Where the record goes; `None`: [`store::folder`].
    pub folder: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ordinal: 0,
            max_rows: 768,
            again: false,
            budget: Duration::from_secs(60),
            folder: None,
        }
    }
}

/// How far tuning has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The problem at hand.
    pub problem: Problem,
    /// Problems that were measured.
    pub done: usize,
    /// Problems to measure.
    pub total: usize,
}

/// What tuning did.
#[derive(Clone, Debug)]
pub struct Report {
    /// The record, with what it held before.
    pub record: Record,
    /// Where it stands.
    pub path: PathBuf,
    /// Problems that were asked for.
    pub problems: Vec<Problem>,
    /// Of those, measured now.
    pub measured: usize,
    /// Of those, in the record already.
    pub kept: usize,
    /// Of those, not begun when the time was over.
    pub left: usize,
    /// Seconds, from opening the device to the written file.
    pub seconds: f64,
    /// What was found in the way, such as a record of other kernels.
    pub notes: Vec<String>,
}

/// Measures what the record of the device lacks for layers of `shapes`, and writes it.
///
/// # Errors
/// This build has no GPU backend.
#[cfg(not(feature = "cuda"))]
pub fn tune(_: &[Shape], _: &Options, _: &mut dyn FnMut(Progress)) -> Result<Report, TuneError> {
    let error = crate::driver::CudaError::from(crate::driver::DeviceError::NotBuilt);
    Err(OpError::from(error).into())
}

/// The date of today in UTC, `YYYY-MM-DD`.
#[cfg(feature = "cuda")]
fn today() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    date(since.map_or(0, |since| since.as_secs() / 86_400))
}

/// The date `days` after 1970-01-01.
#[cfg(any(feature = "cuda", test))]
fn date(mut days: u64) -> String {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    format!("{year:04}-{:02}-{:02}", month + 1, days + 1)
}

#[cfg(feature = "cuda")]
pub use apply::{apply, device_key, layout};

#[cfg(feature = "cuda")]
mod apply {
    use super::{DeviceKey, Record, Shape, TuneError, Tuning, TuningState, shapes, store};
    use crate::checkpoint::ModelConfig;
    use crate::ops::choices::Choices;
    use crate::ops::{Backend as _, CudaBackend, WeightLayout};

    /// What records call the device of `gpu`.
    pub fn device_key(gpu: &CudaBackend) -> DeviceKey {
        let info = gpu.cuda().device().info();
        DeviceKey {
            name: info.name.clone(),
            sm: info.sm,
            sm_count: info.sm_count,
            driver: info.driver_version_text(),
        }
    }

    /// Puts the choices of `tuning` in force on `gpu`. Nothing is measured.
    ///
    /// # Errors
    /// Only for [`Tuning::File`]: a file that cannot be read, is no record, or is one of another device or of
    /// other kernels.
    pub fn apply(gpu: &mut CudaBackend, tuning: &Tuning) -> Result<TuningState, TuneError> {
        let here = device_key(gpu);
        let (mut state, mut all) = (TuningState::default(), Choices::default());
        let mut take = |source: String, record: &Record| {
            let (choices, notes) = choices(gpu, record);
            let left_out = notes.into_iter().map(|note| format!("{source}: {note}"));
            state.notes.extend(left_out);
            if !choices.is_empty() {
                state.sources.push(source);
            }
            choices.trits().for_each(|[n, k]| all.prefer_trits(n, k, true));
            choices.iter().try_for_each(|(problem, variant)| all.insert(*problem, variant))
        };
        match tuning {
            Tuning::Off => {}
            Tuning::File(path) => {
                let unusable = |why: String| TuneError::Unusable { path: path.clone(), why };
                let record =
                    store::read(path)?.ok_or_else(|| unusable("there is no such file".into()))?;
                record.is_of(&here, false).map_err(|stale| unusable(stale.to_string()))?;
                if let Some(note) = choices(gpu, &record).1.into_iter().next() {
                    return Err(unusable(note));
                }
                take(path.display().to_string(), &record)?;
            }
            Tuning::Auto => {
                let shipped = store::SHIPPED.iter().map(|text| Record::parse(text.as_bytes()));
                for record in shipped.flatten().filter(|record| record.is_of(&here, false).is_ok())
                {
                    take("shipped".into(), &record)?;
                }
                let level = gpu.cuda().module().loaded_level();
                let file = store::folder().map(|folder| store::file(&folder, &here, level));
                if let Some((path, found)) = file.map(|path| (path.clone(), store::read(&path))) {
                    match found {
                        Ok(None) => {}
                        Ok(Some(record)) => match record.is_of(&here, true) {
                            Ok(()) => take(path.display().to_string(), &record)?,
                            Err(stale) => {
                                let path = path.display();
                                state.notes.push(format!("{path} is left out: {stale}"));
                            }
                        },
                        Err(error) => state.notes.push(format!("left out: {error}")),
                    }
                }
            }
        }
        state.choices = all.len();
        gpu.set_choices(all)?;
        Ok(state)
    }

    /// The layout of weights that is the fastest on `gpu` for a model of `config`, as far as was measured: 2 bits,
    /// unless 1.6 are faster for every matrix, and one kernel does not run all layers.
    pub fn layout(gpu: &CudaBackend, config: &ModelConfig) -> WeightLayout {
        let heads = crate::model::heads(config);
        let (hidden, ffn) = (config.hidden_size, config.intermediate_size);
        let model = crate::ops::decode_layers::shape(config.num_layers, hidden, ffn, heads);
        let trits = |shape: &Shape| gpu.choices().prefers_trits(shape.n, shape.k);
        match shapes(config).iter().all(trits) && !gpu.runs_together(&model) {
            true => WeightLayout::Trits,
            false => WeightLayout::Bits2,
        }
    }

    /// The choices of `record` that hold on `gpu`.
    fn choices(gpu: &CudaBackend, record: &Record) -> (Choices, Vec<String>) {
        let module = gpu.cuda().module();
        record.choices(
            |family| module.family_sha256(family.name()),
            |problem, variant| gpu.runs(problem, variant),
        )
    }
}
