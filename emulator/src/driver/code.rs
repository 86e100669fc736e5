//! Result codes.

use std::ffi::{CStr, c_char};

use super::{Out, entries};

/// A `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(super) i32);

macro_rules! codes {
    ($($code:literal $constant:ident $text:literal;)*) => {
        impl Code {
            $(
                #[allow(dead_code, reason = "some come from `exec`, as numbers")]
                #[doc = concat!("`CUDA_ERROR_", stringify!($constant), "`")]
                pub(crate) const $constant: Self = Self($code);
            )*

            /// The driver's name of a code, and its description.
            fn words(code: i32) -> Option<[&'static CStr; 2]> {
                Some(match code {
                    0 => [c"CUDA_SUCCESS", c"no error"],
                    $($code => [
                        const { terminated(concat!("CUDA_ERROR_", stringify!($constant), "\0")) },
                        const { terminated(concat!($text, "\0")) },
                    ],)*
                    _ => return None,
                })
            }
        }
    };
}

const fn terminated(text: &str) -> &CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    }
}

codes! {
    1 INVALID_VALUE "invalid argument";
    2 OUT_OF_MEMORY "out of memory";
    3 NOT_INITIALIZED "initialization error";
    100 NO_DEVICE "no CUDA-capable device is detected";
    101 INVALID_DEVICE "invalid device ordinal";
    200 INVALID_IMAGE "device kernel image is invalid";
    201 INVALID_CONTEXT "invalid device context";
    218 INVALID_PTX "a PTX JIT compilation failed";
    222 UNSUPPORTED_PTX_VERSION "the provided PTX was compiled with an unsupported toolchain.";
    400 INVALID_HANDLE "invalid resource handle";
    401 ILLEGAL_STATE "the operation cannot be performed in the present state";
    500 NOT_FOUND "named symbol not found";
    600 NOT_READY "device not ready";
    700 ILLEGAL_ADDRESS "an illegal memory access was encountered";
    701 LAUNCH_OUT_OF_RESOURCES "too many resources requested for launch";
    702 LAUNCH_TIMEOUT "the launch timed out and was terminated";
    716 MISALIGNED_ADDRESS "misaligned address";
    719 LAUNCH_FAILED "unspecified launch failure";
    720 COOPERATIVE_LAUNCH_TOO_LARGE "too many blocks in cooperative launch";
    801 NOT_SUPPORTED "operation not supported";
    900 STREAM_CAPTURE_UNSUPPORTED "operation not permitted when stream is capturing";
    901 STREAM_CAPTURE_INVALIDATED "operation failed due to a previous error during capture";
    902 STREAM_CAPTURE_MERGE "operation would result in a merge of separate capture sequences";
    903 STREAM_CAPTURE_UNMATCHED "capture was not ended in the same stream as it began";
    904 STREAM_CAPTURE_UNJOINED "capturing stream has unjoined work";
    905 STREAM_CAPTURE_ISOLATION "dependency created on uncaptured work in another stream";
    907 CAPTURED_EVENT "operation not permitted on an event last recorded in a capturing stream";
    912 INVALID_CLUSTER_SIZE "cluster misconfiguration";
    999 UNKNOWN "unknown error";
}

/// Stores word `which` of a code, or null.
fn word(code: i32, which: usize, text: Out<*const c_char>) -> Result<(), Code> {
    match Code::words(code) {
        Some(words) => text.put(words[which].as_ptr()),
        None => text.put(std::ptr::null()).and(Err(Code::INVALID_VALUE)),
    }
}

entries! {
    /// The name of a code.
    fn cuGetErrorName(code: i32, text: Out<*const c_char>) {
        word(code, 0, text)
    }

    /// The description of a code.
    fn cuGetErrorString(code: i32, text: Out<*const c_char>) {
        word(code, 1, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_words() {
        assert_eq!(Code::words(0), Some([c"CUDA_SUCCESS", c"no error"]));
        let words = [c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"];
        assert_eq!(Code::words(Code::OUT_OF_MEMORY.0), Some(words));
        assert_eq!(Code::words(12345), None);
    }
}
