//! Devices: what they are, what they allow, and whether they still work.

use std::cell::RefCell;
use std::ffi::c_char;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::code::Code;
use super::stream::Stream;
use super::{MEMORY, Out, complain, entries, lock};

/// Shared memory of a block that has not opted into more, in bytes.
pub(super) const PLAIN_SHARED: u32 = 48 << 10;
/// Threads of a block.
pub(super) const BLOCK_THREADS: u32 = 1024;
/// Registers of a multiprocessor.
const REGISTERS: i32 = 65536;

/// An emulated GPU, with its primary context.
///
/// In the environment: `BITNET_EMULATED_DEVICES`, how many there are (1); `BITNET_EMULATED_SM`, their compute
/// capability without the dot (90); `BITNET_EMULATED_SMS`, their multiprocessors (132); `BITNET_EMULATED_LAUNCHES`,
/// whether kernels run (1) or launches return at once (0), for who measures what comes before them.
pub(crate) struct Device {
    pub(super) ordinal: usize,
    /// Compute capability, `10 * major + minor`.
    pub(super) sm: u32,
    pub(super) multiprocessors: u32,
    pub(super) sizes: Sizes,
    /// Every call waits for what it queues.
    pub(super) blocking: bool,
    /// Kernels run.
    pub(super) launches: bool,
    /// How often the primary context is retained.
    pub(super) retained: AtomicU32,
    /// The code of the fault that killed the context, or 0.
    lost: AtomicI32,
    streams: Mutex<Vec<Weak<Stream>>>,
}

/// What a multiprocessor has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) threads: u32,
    pub(super) blocks: u32,
    /// Shared memory in bytes.
    pub(super) shared: u32,
    /// Shared memory of a block that has opted in.
    pub(super) block_shared: u32,
    /// Shared memory that the system takes of each block.
    pub(super) reserved: u32,
}

impl Sizes {
    fn of(sm: u32) -> Self {
        let (threads, blocks, shared, block_shared) = match sm {
            ..60 | 60 | 62 => (2048, 32, 64 << 10, 48 << 10),
            61 => (2048, 32, 96 << 10, 48 << 10),
            63..75 => (2048, 32, 96 << 10, 96 << 10),
            75..80 => (1024, 16, 64 << 10, 64 << 10),
            80 => (2048, 32, 164 << 10, 163 << 10),
            87 => (1536, 16, 164 << 10, 163 << 10),
            81..89 => (1536, 16, 100 << 10, 99 << 10),
            89 | 120.. => (1536, 24, 100 << 10, 99 << 10),
            _ => (2048, 32, 228 << 10, 227 << 10),
        };
        Self { threads, blocks, shared, block_shared, reserved: if sm >= 80 { 1 << 10 } else { 0 } }
    }
}

static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();

/// All devices.
pub(super) fn devices() -> Result<&'static [Device], Code> {
    DEVICES.get().map(Vec::as_slice).ok_or(Code::NOT_INITIALIZED)
}

/// The device of this number.
pub(super) fn device(ordinal: i32) -> Result<&'static Device, Code> {
    let index = usize::try_from(ordinal).map_err(|_| Code::INVALID_DEVICE)?;
    devices()?.get(index).ok_or(Code::INVALID_DEVICE)
}

thread_local! {
    /// Devices whose contexts this thread has made current, the last one on top.
    pub(super) static CURRENT: RefCell<Vec<&'static Device>> = const { RefCell::new(Vec::new()) };
}

/// The device whose context is current.
pub(super) fn current() -> Result<&'static Device, Code> {
    devices()?;
    let top = CURRENT.with_borrow(|stack| stack.last().copied());
    top.filter(|device| device.is_open()).ok_or(Code::INVALID_CONTEXT)
}

/// The device whose context is current, if nothing has gone wrong there.
pub(super) fn working() -> Result<&'static Device, Code> {
    let device = current()?;
    device.state().map(|()| device)
}

fn number(name: &str, default: u32) -> Result<u32, Code> {
    let Ok(text) = std::env::var(name) else { return Ok(default) };
    text.parse().map_err(|_| {
        complain(&format!("{name} is {text:?}, not a number"));
        Code::UNKNOWN
    })
}

fn open_all() -> Result<Vec<Device>, Code> {
    let sm = number("BITNET_EMULATED_SM", 90)?;
    let multiprocessors = number("BITNET_EMULATED_SMS", 132)?.max(1);
    let blocking = std::env::var_os("CUDA_LAUNCH_BLOCKING").is_some_and(|value| value == "1");
    let count = number("BITNET_EMULATED_DEVICES", 1)? as usize;
    let launches = number("BITNET_EMULATED_LAUNCHES", 1)? != 0;
    let device = |ordinal| Device::new(ordinal, sm, multiprocessors, blocking);
    Ok((0..count).map(|ordinal| Device { launches, ..device(ordinal) }).collect())
}

/// Two devices for the tests of this crate, whatever the environment says; the second one is for faults.
#[cfg(test)]
pub(super) fn open_two() -> &'static [Device] {
    DEVICES.get_or_init(|| (0..2).map(|ordinal| Device::new(ordinal, 90, 4, false)).collect())
}

impl Device {
    fn new(ordinal: usize, sm: u32, multiprocessors: u32, blocking: bool) -> Self {
        Self {
            ordinal,
            sm,
            multiprocessors,
            sizes: Sizes::of(sm),
            blocking,
            launches: true,
            retained: AtomicU32::new(0),
            lost: AtomicI32::new(0),
            streams: Mutex::default(),
        }
    }

    /// Whether somebody holds the primary context.
    pub(super) fn is_open(&self) -> bool {
        self.retained.load(Ordering::Acquire) > 0
    }

    /// Whether blocks of a grid can wait for each other.
    pub(super) fn is_cooperative(&self) -> bool {
        self.sm >= 60
    }

    /// Whether it has clusters of blocks.
    pub(super) fn has_clusters(&self) -> bool {
        self.sm >= 90
    }

    /// The fault that killed the context, as an error.
    pub(super) fn state(&self) -> Result<(), Code> {
        match self.lost.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// Kills the context. Only the first fault counts.
    pub(super) fn lose(&self, code: i32, message: &str) {
        let first = self.lost.compare_exchange(0, code, Ordering::AcqRel, Ordering::Relaxed);
        if first.is_ok() {
            complain(message);
        }
    }

    /// Destroys the primary context, so that the next one is without fault.
    pub(super) fn reset(&self) {
        self.wait();
        self.lost.store(0, Ordering::Release);
    }

    pub(super) fn adopt(&self, stream: &Arc<Stream>) {
        let mut streams = lock(&self.streams);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(stream));
    }

    /// Waits until all streams are done.
    pub(super) fn wait(&self) {
        let streams: Vec<_> = lock(&self.streams).iter().filter_map(Weak::upgrade).collect();
        streams.iter().for_each(|stream| stream.wait());
    }

    /// A `CUdevice_attribute`.
    fn attribute(&self, id: i32) -> Option<i32> {
        let sizes = &self.sizes;
        let flag = |holds: bool| i32::from(holds);
        Some(match id {
            1..=3 => BLOCK_THREADS as i32, // of a block, and along x and y
            4 => 64,                       // along z
            5 => i32::MAX,                 // blocks of a grid along x
            6 | 7 => 65535,                // along y and z
            8 => PLAIN_SHARED as i32,
            9 => 64 << 10,               // constant memory
            10 => 32,                    // threads of a warp
            11 => i32::MAX,              // pitch
            12 | 82 => REGISTERS,        // of a block and of a multiprocessor
            13 => 1_980_000,             // kHz
            14 => 512,                   // alignment of textures
            15 | 19 | 31 | 41 | 78 => 1, // overlap, mapped memory, concurrent kernels, one address space, priorities
            16 => self.multiprocessors as i32,
            17 | 18 | 20 | 32 | 35 | 83 | 115 => 0, // watchdog, integrated, mode, ECC, TCC, managed memory, pools
            33 => 1 + self.ordinal as i32,          // PCI bus
            34 | 50 => 0,                           // PCI device and domain
            36 => 3_201_000,                        // memory clock in kHz
            37 => 6144,                             // bits of the memory bus
            38 => 60 << 20,                         // second-level cache
            39 => sizes.threads as i32,
            40 => 3, // copy engines
            75 => self.sm as i32 / 10,
            76 => self.sm as i32 % 10,
            81 => sizes.shared as i32,
            95 => flag(self.is_cooperative()),
            97 => sizes.block_shared as i32,
            106 => sizes.blocks as i32,
            111 => sizes.reserved as i32,
            120 => flag(self.has_clusters()),
            _ => return None,
        })
    }
}

/// Stores `text` and a zero in `room` bytes, as much of it as fits.
pub(super) fn put_text(to: *mut c_char, room: usize, text: &str) {
    let len = text.len().min(room.saturating_sub(1));
    if to.is_null() || room == 0 {
        return;
    }
    // SAFETY: the callers pass on a place and its size that a driver function was called with; of its bytes, at most
    // all are written.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), len);
        to.add(len).write(0);
    }
}

entries! {
    /// Makes the devices, once.
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let devices = match DEVICES.get() {
            Some(devices) => devices,
            None => {
                let devices = open_all()?;
                DEVICES.get_or_init(|| devices)
            }
        };
        if devices.is_empty() { Err(Code::NO_DEVICE) } else { Ok(()) }
    }

    /// The CUDA version that is emulated.
    fn cuDriverGetVersion(version: Out<i32>) {
        version.put(13000)
    }

    /// How many devices there are.
    fn cuDeviceGetCount(count: Out<i32>) {
        count.put(devices()?.len() as i32)
    }

    /// The device of a number: the number.
    fn cuDeviceGet(to: Out<i32>, ordinal: i32) {
        device(ordinal)?;
        to.put(ordinal)
    }

    /// A device's name.
    fn cuDeviceGetName(to: *mut c_char, len: i32, of: i32) {
        device(of)?;
        let room = usize::try_from(len).map_err(|_| Code::INVALID_VALUE)?;
        put_text(to, room, "bitnet emulator");
        Ok(())
    }

    /// A device's UUID: made up.
    fn cuDeviceGetUuid(to: Out<[u8; 16]>, of: i32) {
        let mut uuid = *b"bitnet emulator\0";
        uuid[15] = device(of)?.ordinal as u8;
        to.put(uuid)
    }

    /// A device's memory.
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, of: i32) {
        device(of)?;
        bytes.put(MEMORY.limit() as usize)
    }

    /// What a device is and allows.
    fn cuDeviceGetAttribute(to: Out<i32>, id: i32, of: i32) {
        to.put(device(of)?.attribute(id).ok_or(Code::INVALID_VALUE)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_h200_and_what_came_before() {
        let device = Device::new(0, 90, 132, false);
        assert_eq!(
            [97, 81, 75, 76, 16].map(|id| device.attribute(id)),
            [Some(232448), Some(233472), Some(9), Some(0), Some(132)]
        );
        assert_eq!(device.attribute(100_000), None);
        let shared = [53, 61, 75, 80, 86, 100].map(|sm| Sizes::of(sm).block_shared);
        assert_eq!(shared, [49152, 49152, 65536, 166912, 101376, 232448]);
    }

    #[test]
    fn the_first_fault_stays_until_a_reset() {
        let device = Device::new(0, 90, 132, false);
        assert_eq!(device.state(), Ok(()));
        device.lose(700, "a fault of a test");
        device.lose(719, "never printed");
        assert_eq!(device.state(), Err(Code::ILLEGAL_ADDRESS));
        device.reset();
        assert_eq!(device.state(), Ok(()));
    }

    #[test]
    fn a_text_ends_in_its_room() {
        let mut room = [1i8 as c_char; 6];
        put_text(room.as_mut_ptr(), 4, "abcdef");
        assert_eq!(room.map(|c| c as u8), [b'a', b'b', b'c', 0, 1, 1]);
    }
}
