//! A device with everything that running kernels on it takes, opened together.

use crate::memory::{MemoryError, Pool, PoolOptions};

use super::device::Device;
use super::error::{CudaError, DriverError, ModuleError};
use super::module::Module;
use super::profile::Profiler;
use super::stream::{Stream, StreamOptions};

/// What a program may set before it opens a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaOptions {
    /// Which device, after `CUDA_VISIBLE_DEVICES`.
    pub ordinal: u32,
    /// The most device memory that the pool may hold, in bytes; `None`: what the device has.
    pub pool_cap_bytes: Option<usize>,
    /// Priority of the main stream; smaller is sooner.
    pub priority: i32,
    /// Time every launch ([`Cuda::profiler`]).
    pub profile: bool,
    /// Start kernels before the previous one has ended, where device and kernel allow it.
    pub pdl: bool,
}

impl CudaOptions {
    /// The defaults on device `ordinal`.
    pub fn new(ordinal: u32) -> Self {
        Self { ordinal, ..Self::default() }
    }

    /// The same with at most `bytes` of device memory in the pool.
    pub fn pool_cap_bytes(self, bytes: usize) -> Self {
        Self { pool_cap_bytes: Some(bytes), ..self }
    }

    /// The same with this priority of the main stream.
    pub fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// The same with per-kernel timing on or off.
    pub fn profile(self, profile: bool) -> Self {
        Self { profile, ..self }
    }

    /// The same with programmatic dependent launch on or off.
    pub fn pdl(self, pdl: bool) -> Self {
        Self { pdl, ..self }
    }

    /// Opens the device, loads the embedded kernels and makes stream and pool.
    ///
    /// # Errors
    /// No driver or device, no PTX that fits, or a driver failure.
    pub fn build(self) -> Result<Cuda, CudaError> {
        Cuda::open(self)
    }
}

/// An opened device with its kernels, its main stream and its memory pool. Clones share them.
#[derive(Clone, Debug)]
pub struct Cuda {
    device: Device,
    module: Module,
    stream: Stream,
    pool: Pool,
    options: CudaOptions,
}

impl Cuda {
    /// Opens a device; see [`CudaOptions::build`].
    ///
    /// # Errors
    /// No driver or device, no PTX that fits, or a driver failure.
    pub fn open(options: CudaOptions) -> Result<Self, CudaError> {
        let device = Device::open(options.ordinal)?;
        if options.profile {
            device.enable_profiler();
        }
        let module = Module::load(&device)?;
        let stream = Stream::new(
            &device,
            StreamOptions::default().priority(options.priority).pdl(options.pdl),
        )?;
        let pool = Pool::new(&device, PoolOptions { cap_bytes: options.pool_cap_bytes });
        Ok(Self { device, module, stream, pool, options })
    }

    /// The same device, stream and pool with the caller's own build of the kernels, or of some of them.
    ///
    /// # Errors
    /// PTX that the driver refuses.
    ///
    /// # Safety
    /// Each kernel of the contract that stands in `ptx` takes the arguments of the contract and reads and
    /// writes what the contract says: the operations launch it on that word.
    pub unsafe fn with_ptx(self, level: &str, ptx: &str) -> Result<Self, ModuleError> {
        let module = Module::from_ptx(&self.device, level, ptx)?;
        Ok(Self { module, ..self })
    }

    /// Makes `stream` the main one and gives back the one before.
    ///
    /// # Errors
    /// A stream of another device.
    pub fn set_stream(&mut self, stream: Stream) -> Result<Stream, MemoryError> {
        if *stream.device() != self.device {
            let (memory_device, stream_device) = (self.device.ordinal(), stream.device().ordinal());
            return Err(MemoryError::WrongDevice { memory_device, stream_device });
        }
        Ok(std::mem::replace(&mut self.stream, stream))
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The loaded kernels.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// The main stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The memory pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// One more stream, with the options of the main one.
    ///
    /// # Errors
    /// A driver failure.
    pub fn new_stream(&self) -> Result<Stream, DriverError> {
        let options =
            StreamOptions::default().priority(self.options.priority).pdl(self.options.pdl);
        Stream::new(&self.device, options)
    }

    /// The profiler, when [`CudaOptions::profile`] is set.
    pub fn profiler(&self) -> Option<&Profiler> {
        self.device.profiler()
    }
}
