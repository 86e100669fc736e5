//! Progress bars: drawn only on a terminal, and only when the work has lasted for a second.

use crate::output::Output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// A bar that stays invisible until a second has passed.
pub(crate) struct Progress {
    bar: ProgressBar,
    started: Instant,
    wanted: bool,
    shown: bool,
}

impl Progress {
    pub(crate) fn new(output: &Output) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let template = "{msg:28!} [{bar:40}] {percent:>3}% ({eta} left)";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar, started: Instant::now(), wanted: output.shows_progress(), shown: false }
    }

    /// Says what is being done, how far it is and how much there is, in any unit.
    pub(crate) fn set(&mut self, what: &str, done: u64, total: u64) {
        if self.bar.message() != what {
            self.bar.set_message(what.to_owned());
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
        if self.wanted && !self.shown && self.started.elapsed() >= Duration::from_secs(1) {
            self.shown = true;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
