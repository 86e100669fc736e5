//! The CUDA driver, loaded at run time.
//!
//! | file      | holds                                                                    |
//! |-----------|--------------------------------------------------------------------------|
//! | `loader`  | the `cu*` symbols that `cust` links to, as trampolines over `dlopen`      |
//! | `api`     | the functions that this crate calls itself                               |
//! | `device`  | [`Device`]: context, properties, limits                                  |
//! | `module`  | [`Module`]: PTX to kernels, level by level, through `cust`               |
//! | `kernel`  | [`KernelHandle`]: the one launch                                         |
//! | `stream`, `event`, `graph` | order of work                                           |
//! | `tensor_map` | what the copy engine of a Hopper GPU wants to know of a tensor           |
//! | `profile` | time per kernel                                                          |
//! | `runtime` | [`Cuda`]: all of it, opened together                                     |
//!
//! Without the `cuda` feature only the error types and [`DeviceLimits`] are here. Handles are
//! counted: each keeps what it needs alive, so they can be dropped in any order. Nothing here
//! panics when it is dropped; a failure that shows up then is one of earlier work, and the driver
//! reports it again to the next call.

pub mod error;
mod limits;

#[cfg(feature = "cuda")]
mod api;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod event;
#[cfg(feature = "cuda")]
mod graph;
#[cfg(feature = "cuda")]
mod kernel;
#[cfg(feature = "cuda")]
mod loader;
#[cfg(feature = "cuda")]
mod module;
#[cfg(feature = "cuda")]
mod profile;
#[cfg(feature = "cuda")]
pub mod ptx;
#[cfg(feature = "cuda")]
mod runtime;
#[cfg(feature = "cuda")]
mod stream;
#[cfg(feature = "cuda")]
mod tensor_map;

pub use error::{CudaError, DeviceError, DriverError, GraphError, LaunchError, ModuleError};
pub use limits::DeviceLimits;

#[cfg(feature = "cuda")]
pub use {
    device::{Device, DeviceInfo, MIN_SM},
    event::Event,
    graph::Graph,
    kernel::{KernelHandle, KernelResources, launch_count},
    module::{Module, PTX_LEVEL_VAR},
    profile::Profiler,
    runtime::{Cuda, CudaOptions},
    stream::{Stream, StreamOptions},
    tensor_map::{MapElement, Mapped},
};

#[cfg(feature = "cuda")]
pub(crate) use {
    api::{Api, HOST_DEVICEMAP, HOST_PORTABLE, OUT_OF_MEMORY},
    kernel::{Call, Loaded},
    stream::lock,
};
