//! How a call ends: a number, and words kept for the thread.

use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `BITNET_OK` and its like in `bitnet.h`.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// A file, a device or memory said no.
    Failed = 1,
    /// An argument is wrong: nothing was done.
    Argument = 2,
    /// A defect of the library. The handle should not be used again.
    Panic = 3,
    /// There is no room for a request while others have it.
    Full = 4,
}

/// Why a call failed.
pub(crate) struct Failure {
    status: Status,
    words: String,
}

impl Failure {
    pub(crate) fn argument(words: impl Into<String>) -> Self {
        Self { status: Status::Argument, words: words.into() }
    }

    pub(crate) fn full(words: impl Into<String>) -> Self {
        Self { status: Status::Full, words: words.into() }
    }

    pub(crate) fn failed(words: String) -> Self {
        Self { status: Status::Failed, words }
    }

    pub(crate) fn null(what: &str) -> Self {
        Self::argument(format!("{what} is NULL"))
    }
}

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { status: Status::Failed, words: error.to_string() }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs `body` for C: failures and panics become a status and words.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
            let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
            let words = format!("a defect of the library: {}", words.unwrap_or_default());
            Failure { status: Status::Panic, words }
        }
    };
    let words = CString::new(failure.words.replace('\0', " ")).unwrap_or_default();
    LAST.with_borrow_mut(|last| *last = words);
    failure.status
}

/// The words of the last failure of this thread; empty when there was none. Valid until the thread's next
/// failure.
#[unsafe(no_mangle)]
pub extern "C" fn bitnet_last_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}
