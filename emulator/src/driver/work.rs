//! What streams and graphs do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::MEMORY;
use super::code::Code;
use super::device::Device;
use super::event::Event;
use super::launch::Call;

/// One thing that a stream does.
pub(super) enum Work {
    /// A kernel.
    Kernel(Call),
    /// A copy.
    Copy { to: Place, from: Place, bytes: u64 },
    /// Bytes that the caller may have changed since.
    Upload { to: u64, bytes: Vec<u8> },
    /// The same byte, often.
    Fill { to: u64, byte: u8, bytes: u64 },
    /// All of a graph.
    Graph(Arc<Vec<Work>>),
    /// An event is reached.
    Record { event: Arc<Event>, serial: u64 },
    /// An event has to be reached first.
    Wait { event: Arc<Event>, serial: u64 },
}

/// Where a copy reads or writes.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// Has to be in the table of live memory.
    Known(u64),
    /// Host memory that only the caller knows.
    Host(usize),
}

impl Place {
    /// The address of `bytes` bytes, if they may be touched.
    fn address(self, bytes: u64) -> Result<usize, String> {
        match self {
            Self::Known(addr) => MEMORY.check(addr, bytes).map(|()| addr as usize),
            Self::Host(addr) => Ok(addr),
        }
    }
}

impl Work {
    /// Does it. On a lost context nothing happens, except that events are waited for.
    pub(super) fn run(&self, device: &'static Device) {
        match self {
            // Its stream says so, when it is done itself.
            Self::Record { .. } => return,
            Self::Wait { event, serial } => return event.wait(*serial),
            Self::Graph(nodes) => return nodes.iter().for_each(|node| node.run(device)),
            _ if device.state().is_err() => return,
            _ => {}
        }
        let done = catch_unwind(AssertUnwindSafe(|| match self {
            Self::Kernel(call) => call.run(),
            _ => self.move_bytes().map_err(|text| (Code::ILLEGAL_ADDRESS.0, text)),
        }));
        match done {
            Ok(Ok(())) => {}
            Ok(Err((code, text))) => device.lose(code, &text),
            Err(_) => device.lose(Code::LAUNCH_FAILED.0, &format!("a bug in it: {self} panicked")),
        }
    }

    fn move_bytes(&self) -> Result<(), String> {
        let explain = |text: String| format!("{self}: {text}");
        let host = std::ptr::with_exposed_provenance_mut::<u8>;
        match *self {
            Self::Copy { to, from, bytes } => {
                let to = to.address(bytes).map_err(explain)?;
                let from = from.address(bytes).map_err(explain)?;
                // SAFETY: both ranges are live allocations, which nobody frees before the streams are done, or host
                // memory that the caller promises to be valid until the copy is done.
                unsafe { std::ptr::copy(host(from), host(to), bytes as usize) };
            }
            Self::Upload { to, ref bytes } => {
                let to = Place::Known(to).address(bytes.len() as u64).map_err(explain)?;
                // SAFETY: as above; the bytes are our own.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), host(to), bytes.len()) };
            }
            Self::Fill { to, byte, bytes } => {
                let to = Place::Known(to).address(bytes).map_err(explain)?;
                // SAFETY: as above.
                unsafe { host(to).write_bytes(byte, bytes as usize) };
            }
            _ => {}
        }
        Ok(())
    }
}

impl std::fmt::Display for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Kernel(call) => call.name(),
            Self::Copy { .. } | Self::Upload { .. } => "a copy",
            Self::Fill { .. } => "a fill",
            Self::Graph(_) => "a graph",
            Self::Record { .. } | Self::Wait { .. } => "an event",
        })
    }
}
