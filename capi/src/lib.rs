//! C interface of `bitnet_gpu`: `include/bitnet.h` is its documentation.
//!
//! Handles are opaque and may be used from any thread, one call at a time each (a lock sees to it). Every
//! function gives a [`status::Status`]; the words of the last failure of a thread are [`status::bitnet_last_error`]'s. No
//! panic leaves the library. Structs begin with their size, so that a later version can add to their end.

pub mod batch;
pub mod bmm;
pub mod conv2d;
pub mod elements;
pub mod layer;
pub mod linear;
pub mod logprobs;
pub mod lut;
pub mod options;
pub mod pool2d;
mod product;
pub mod rows;
pub mod session;
pub mod sparse;
pub mod status;
pub mod tensor;

use std::ffi::{CStr, c_char};

use status::Failure;

/// The version of this library, such as `0.1.0`. Never null, never freed.
#[unsafe(no_mangle)]
pub extern "C" fn bitnet_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version holds no zero byte"),
        };
    VERSION.as_ptr()
}

/// What the header says of threads.
const _: () = {
    const fn any_thread<T: Send + Sync>() {}
    any_thread::<session::Handle>();
    any_thread::<batch::Batch>();
    any_thread::<linear::Device>();
    any_thread::<linear::Linear>();
    any_thread::<layer::Layer>();
};

/// The text that a caller passed, which must be UTF-8.
///
/// # Safety
/// `text` is null or ends with a zero byte, and lives for `'a`.
unsafe fn text<'a>(what: &'static str, text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: by the caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|error| Failure::argument(format!("{what} is not UTF-8: {error}")))
}

/// Refuses an address at which `len` elements cannot be.
fn room<T>(what: &str, data: *const T, len: usize) -> Result<(), Failure> {
    if data.is_null() {
        return Err(Failure::null(what));
    }
    let (bytes, align) = (size_of::<T>().max(1), align_of::<T>());
    if !data.is_aligned() {
        return Err(Failure::argument(format!(
            "{what} has to start at a multiple of {align} bytes"
        )));
    }
    if len > isize::MAX as usize / bytes {
        return Err(Failure::argument(format!("{what} has {len} elements, more than memory has")));
    }
    Ok(())
}

/// The elements that a caller passed.
///
/// # Safety
/// `data` is null or has `len` elements, and they live for `'a`.
unsafe fn slice<'a, T: Copy>(what: &str, data: *const T, len: usize) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    room(what, data, len)?;
    // SAFETY: by the caller; not null, aligned and no longer than memory, as `room` found.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// The text of `len` bytes that a caller passed, which must be UTF-8.
///
/// # Safety
/// `text` is null or has so many bytes, and lives for `'a`.
unsafe fn utf8<'a>(
    what: &'static str,
    (text, len): (*const c_char, usize),
) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: by the caller.
    let bytes = unsafe { slice(what, text.cast::<u8>(), len)? };
    std::str::from_utf8(bytes)
        .map_err(|error| Failure::argument(format!("{what} is not UTF-8: {error}")))
}

/// Copies `text` with a zero byte behind it to a buffer of the caller, cut at a character where it is too long.
///
/// # Safety
/// `out` is null or has `len` bytes.
unsafe fn copy_text(text: &str, out: *mut c_char, len: usize) -> Result<(), Failure> {
    if out.is_null() || len == 0 {
        return Err(Failure::null("the buffer for text"));
    }
    let end = text.floor_char_boundary(len - 1);
    // SAFETY: `end` is below `len`, and a new buffer overlaps no `str`.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, end);
        out.add(end).write(0);
    }
    Ok(())
}
