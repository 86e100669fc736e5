//! A GPU and its primary context.
//!
//! [`Device`] is a counted handle. Every object made from it (stream, module, buffer) holds one, so
//! the context outlives them. Each public entry makes the context current on the calling thread
//! first: a few nanoseconds when it already is, and right whatever other libraries of the process
//! do between two calls.

use std::sync::{Arc, OnceLock};

use cust::context::Context;

use super::api::{Api, Handle, api};
use super::error::{DeviceError, DriverError};
use super::limits::DeviceLimits;
use super::profile::Profiler;

/// The least compute capability for which there are kernels.
pub const MIN_SM: u32 = 53;

/// What a device is, read without opening it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Position among the visible devices.
    pub ordinal: u32,
    /// Marketing name.
    pub name: String,
    /// UUID in the form that `nvidia-smi` and `CUDA_VISIBLE_DEVICES` use.
    pub uuid: String,
    /// PCI address, `domain:bus:device`.
    pub pci: String,
    /// Compute capability, `10 * major + minor`.
    pub sm: u32,
    /// Multiprocessors.
    pub sm_count: u32,
    /// Device memory in bytes.
    pub memory_bytes: usize,
    /// Second-level cache in bytes.
    pub l2_bytes: u32,
    /// Memory clock in kHz; 0 where the driver does not say.
    pub memory_clock_khz: u32,
    /// Memory bus width in bits.
    pub memory_bus_bits: u32,
    /// Whether the GPU shares memory with the CPU.
    pub integrated: bool,
    /// Launch limits.
    pub limits: DeviceLimits,
    /// Highest CUDA version of the driver, `1000 * major + 10 * minor`.
    pub driver_version: u32,
}

impl DeviceInfo {
    /// The driver's CUDA version as people write it, such as `12.4`.
    pub fn driver_version_text(&self) -> String {
        format!("{}.{}", self.driver_version / 1000, self.driver_version % 1000 / 10)
    }

    /// Whether kernels can start before the previous one has ended (programmatic dependent launch).
    pub fn supports_pdl(&self) -> bool {
        self.sm >= 90
    }
}

/// An opened GPU.
#[derive(Clone)]
pub struct Device(Arc<DeviceInner>);

struct DeviceInner {
    api: &'static Api,
    context: Context,
    info: DeviceInfo,
    profiler: OnceLock<Profiler>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({}: {}, sm_{})", self.0.info.ordinal, self.0.info.name, self.0.info.sm)
    }
}

impl PartialEq for Device {
    /// Whether both are the same GPU; handles of one GPU share its primary context.
    fn eq(&self, other: &Self) -> bool {
        self.ordinal() == other.ordinal()
    }
}

impl Eq for Device {}

impl Device {
    /// The number of visible devices.
    ///
    /// # Errors
    /// No driver, or a driver that does not start. A driver that reports "no device" is an error
    /// too, with its hint.
    pub fn count() -> Result<u32, DeviceError> {
        let api = api()?;
        let mut count = 0;
        // SAFETY: writes one i32.
        api.check(unsafe { (api.device_count)(&mut count) }, "cuDeviceGetCount")?;
        Ok(count.max(0) as u32)
    }

    /// All visible devices, without opening any of them.
    ///
    /// # Errors
    /// As [`Device::count`].
    pub fn list() -> Result<Vec<DeviceInfo>, DeviceError> {
        (0..Self::count()?).map(|ordinal| read_info(api()?, ordinal)).collect()
    }

    /// Opens the device of this ordinal (after `CUDA_VISIBLE_DEVICES`).
    ///
    /// # Errors
    /// No driver, no such device, a device older than [`MIN_SM`], or a driver failure.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        let found = Self::count()?;
        if ordinal >= found {
            return Err(DeviceError::NoSuchDevice { asked: ordinal, found });
        }
        let api = api()?;
        let info = read_info(api, ordinal)?;
        if info.sm < MIN_SM {
            return Err(DeviceError::TooOldGpu { name: info.name, found: info.sm, need: MIN_SM });
        }
        let context = cust::device::Device::get_device(ordinal)
            .and_then(Context::new)
            .map_err(|e| api.error(e as i32, "cuDevicePrimaryCtxRetain"))?;
        Ok(Self(Arc::new(DeviceInner { api, context, info, profiler: OnceLock::new() })))
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// Launch limits.
    pub fn limits(&self) -> &DeviceLimits {
        &self.0.info.limits
    }

    /// Position among the visible devices.
    pub fn ordinal(&self) -> u32 {
        self.0.info.ordinal
    }

    /// Compute capability, `10 * major + minor`.
    pub fn sm(&self) -> u32 {
        self.0.info.sm
    }

    /// Multiprocessors.
    pub fn sm_count(&self) -> u32 {
        self.0.info.sm_count
    }

    /// `(free, total)` bytes of device memory now, over all programs.
    ///
    /// # Errors
    /// A driver failure.
    pub fn memory_info(&self) -> Result<(usize, usize), DriverError> {
        let api = self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two usize.
        api.check(unsafe { (api.mem_info)(&mut free, &mut total) }, "cuMemGetInfo")?;
        Ok((free, total))
    }

    /// Waits for all work of all streams of the device.
    ///
    /// # Errors
    /// A driver failure, or one of earlier asynchronous work.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        let api = self.bind()?;
        // SAFETY: no arguments; the context is current.
        api.check(unsafe { (api.ctx_synchronize)() }, "cuCtxSynchronize")
    }

    /// `(least, greatest)` stream priority; the greatest is the smaller number.
    ///
    /// # Errors
    /// A driver failure.
    pub fn stream_priorities(&self) -> Result<(i32, i32), DriverError> {
        let api = self.bind()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: writes two i32.
        let code = unsafe { (api.ctx_stream_priorities)(&mut least, &mut greatest) };
        api.check(code, "cuCtxGetStreamPriorityRange")?;
        Ok((least, greatest))
    }

    /// The profiler, when [`Device::enable_profiler`] was called.
    pub fn profiler(&self) -> Option<&Profiler> {
        self.0.profiler.get()
    }

    /// Times every launch on this device from now on. It stays on; launches without a profiler pay
    /// one untaken branch.
    pub fn enable_profiler(&self) -> &Profiler {
        self.0.profiler.get_or_init(Profiler::new)
    }

    /// Makes the context current on this thread and hands out the entry points.
    #[inline]
    pub(crate) fn bind(&self) -> Result<&'static Api, DriverError> {
        let api = self.0.api;
        // SAFETY: the context is retained as long as `self` lives.
        let code = unsafe { (api.ctx_set_current)(self.0.context.as_raw() as Handle) };
        api.check(code, "cuCtxSetCurrent")?;
        Ok(api)
    }
}

fn read_info(api: &Api, ordinal: u32) -> Result<DeviceInfo, DeviceError> {
    let mut raw = 0;
    // SAFETY: writes one i32.
    api.check(unsafe { (api.device_get)(&mut raw, ordinal as i32) }, "cuDeviceGet")?;
    // `CUdevice_attribute` numbers.
    let attribute = |id: i32| -> Result<u32, DriverError> {
        let mut value = 0;
        // SAFETY: writes one i32; `raw` is a device of this driver.
        let code = unsafe { (api.device_attribute)(&mut value, id, raw) };
        api.check(code, "cuDeviceGetAttribute")?;
        Ok(value.max(0) as u32)
    };
    let mut name = [0u8; 256];
    // SAFETY: the buffer has 256 bytes, as said; the driver writes a terminated string.
    let code = unsafe { (api.device_name)(name.as_mut_ptr().cast(), 256, raw) };
    api.check(code, "cuDeviceGetName")?;
    let name_len = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    let mut memory_bytes = 0;
    // SAFETY: writes one usize.
    let code = unsafe { (api.device_total_mem)(&mut memory_bytes, raw) };
    api.check(code, "cuDeviceTotalMem")?;
    let mut uuid = [0; 16];
    // SAFETY: writes 16 bytes.
    api.check(unsafe { (api.device_uuid)(&mut uuid, raw) }, "cuDeviceGetUuid")?;
    let mut driver_version = 0;
    // SAFETY: writes one i32.
    api.check(unsafe { (api.driver_version)(&mut driver_version) }, "cuDriverGetVersion")?;

    let sm = 10 * attribute(75)? + attribute(76)?;
    let limits = DeviceLimits {
        sm,
        block_threads: attribute(1)?,
        block: [attribute(2)?, attribute(3)?, attribute(4)?],
        grid: [attribute(5)?, attribute(6)?, attribute(7)?],
        smem_bytes: attribute(8)?,
        smem_optin_bytes: attribute(97)?,
    };
    Ok(DeviceInfo {
        ordinal,
        name: String::from_utf8_lossy(&name[..name_len]).into_owned(),
        uuid: uuid_text(&uuid),
        pci: format!("{:04x}:{:02x}:{:02x}", attribute(50)?, attribute(33)?, attribute(34)?),
        sm,
        sm_count: attribute(16)?,
        memory_bytes,
        l2_bytes: attribute(38)?,
        // Newer drivers may stop answering for clocks; that is no reason to refuse the device.
        memory_clock_khz: attribute(36).unwrap_or(0),
        memory_bus_bits: attribute(37)?,
        integrated: attribute(18)? != 0,
        limits,
        driver_version: driver_version.max(0) as u32,
    })
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::from("GPU-");
    for (i, byte) in uuid.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_reads_as_in_nvidia_smi() {
        let bytes = std::array::from_fn(|i| (i * 17) as u8);
        assert_eq!(uuid_text(&bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn without_a_driver_every_entry_is_a_typed_error() {
        if api().is_ok() {
            return; // the GPU lane covers a machine with a driver
        }
        for error in [
            Device::count().unwrap_err(),
            Device::list().unwrap_err(),
            Device::open(0).unwrap_err(),
        ] {
            assert!(!error.to_string().is_empty());
            assert!(matches!(error, DeviceError::NoDriver { .. } | DeviceError::Driver(_)));
        }
    }
}
