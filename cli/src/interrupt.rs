//! Ctrl-C: the first one asks the running work to stop between two tokens, the second one ends the
//! program.

use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);
/// Nothing is running that could be stopped: the program waits for input.
static IDLE: AtomicBool = AtomicBool::new(false);

/// Installs the handler; harmless when there is one already.
pub(crate) fn install() {
    // Without a handler Ctrl-C simply ends the program, which is acceptable.
    let _ = ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::Relaxed) || IDLE.load(Ordering::Relaxed) {
            std::process::exit(130);
        }
    });
}

/// Whether Ctrl-C was pressed since the last [`reset`].
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Forgets an earlier Ctrl-C.
pub(crate) fn reset() {
    ASKED.store(false, Ordering::Relaxed);
}

/// Runs `wait`, during which a single Ctrl-C ends the program.
pub(crate) fn while_idle<T>(wait: impl FnOnce() -> T) -> T {
    IDLE.store(true, Ordering::Relaxed);
    let result = wait();
    IDLE.store(false, Ordering::Relaxed);
    result
}
