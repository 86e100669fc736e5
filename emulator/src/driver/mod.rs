//! The driver's functions, under their own names.
//!
//! Each stream has a thread that runs its work in order; `CUDA_LAUNCH_BLOCKING=1` makes every call wait for what it
//! queued. Memory is freed only when all streams are done. A fault of a kernel is printed to stderr, and from then on
//! the calls of its context return it, as the driver's do.
//!
//! What a program may set in the environment: see [`device::Device`].

mod code;
mod context;
mod device;
mod event;
mod graph;
mod handles;
mod launch;
mod module;
mod stream;
mod tensor_map;
#[cfg(test)]
mod tests;
mod transfer;
mod work;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::memory::Memory;

pub(crate) use code::Code;

/// Memory of all devices: they have one address space, as the real ones.
static MEMORY: LazyLock<Memory> = LazyLock::new(Memory::new);

/// Where a caller wants a result.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Stores the result.
    fn put(self, value: T) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: only callers of the driver's functions make an `Out`, and they promise that it can be written.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// What stands there, for results that are arguments too.
    fn get(&self) -> Result<T, Code>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: as in `put`; the functions that read it say so in the driver's documentation.
        Ok(unsafe { self.0.read() })
    }

    fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// Numbers or structures that a caller passes.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> In<T> {
    /// The first `len` of them.
    fn list(&self, len: usize) -> Result<&[T], Code> {
        match (len, self.0.is_null()) {
            (0, _) => Ok(&[]),
            (_, true) => Err(Code::INVALID_VALUE),
            // SAFETY: only callers of the driver's functions make an `In`, and they promise that it points to as many
            // as the other arguments say, which outlive the call.
            _ => Ok(unsafe { std::slice::from_raw_parts(self.0, len) }),
        }
    }

    fn get(&self) -> Result<&T, Code> {
        Ok(&self.list(1)?[0])
    }
}

/// Runs a driver function's body. A panic is the emulator's own fault.
fn entry(body: impl FnOnce() -> Result<(), Code>) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// Tells the user what a result code cannot say.
fn complain(message: &str) {
    eprintln!("bitnet emulator: {message}");
}

/// A lock whose holder panicked is still consistent here: panics come out of kernels, which run outside of locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Defines driver functions; their bodies give `Result<(), Code>`.
macro_rules! entries {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// Pointers are what the driver's documentation of this function asks for.
            // SAFETY: the one function of this name in the library.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the driver's names")]
            pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> i32 {
                $crate::driver::entry(|| $body)
            }
        )*
    };
}
use entries;
