//! Ternary linear layers on the caller's own memory: host memory on the CPU, device memory and a stream of the
//! caller's on a GPU.

use std::ffi::{c_char, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::device_choice::{self, BackendChoice};
#[cfg(feature = "cuda")]
use bitnet_gpu::ops::CudaBackend;
use bitnet_gpu::ops::w2a8_gemm::W2a8Gemm;
use bitnet_gpu::ops::w2a8_gemv::W2a8Gemv;
use bitnet_gpu::ops::{Backend, OpError, PackedLinear, QuantActs};
use bitnet_gpu::pack::PackedW2;
use contract::w2a8::{MAX_K, MAX_ROWS, act_bytes};

use crate::layer::Lends;
use crate::product::quantise;
use crate::status::{Failure, Status, call};
use crate::tensor::{Dtype, FLOATS};
use crate::{copy_text, text};

/// `bitnet_backend`.
pub struct Device(pub(crate) Arc<Place>);

pub(crate) enum Place {
    Cpu(CpuBackend),
    #[cfg(feature = "cuda")]
    Cuda(cuda::Shared),
}

/// `bitnet_linear`.
pub struct Linear {
    place: Arc<Place>,
    weights: Weights,
    k: usize,
}

enum Weights {
    Cpu(PackedLinear<CpuBackend>),
    #[cfg(feature = "cuda")]
    Cuda(PackedLinear<CudaBackend>),
}

/// Nothing in the backends is left half-way by a panic that came this far.
pub(crate) fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a device for layers.
///
/// # Safety
/// `device` is null or ends with a zero byte; `out` is null or can hold a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_backend_open(
    device: *const c_char,
    out: *mut *mut Device,
) -> Status {
    call(|| {
        let out = NonNull::new(out).ok_or_else(|| Failure::null("out"))?;
        // SAFETY: by the caller.
        unsafe { out.write(std::ptr::null_mut()) };
        let choice = if device.is_null() {
            BackendChoice::Auto
        } else {
            // SAFETY: by the caller.
            let device = unsafe { text("device", device)? };
            device.parse().map_err(|error| Failure::argument(format!("{error}")))?
        };
        let place = match choice.resolve()? {
            device_choice::Backend::Cpu => Place::Cpu(CpuBackend::new(None)?),
            #[cfg(feature = "cuda")]
            device_choice::Backend::Cuda(ordinal) => Place::Cuda(cuda::Shared::open(ordinal)?),
            #[cfg(not(feature = "cuda"))]
            device_choice::Backend::Cuda(_) => unreachable!("`resolve` refuses it in this build"),
        };
        // SAFETY: by the caller.
        unsafe { out.write(Box::into_raw(Box::new(Device(Arc::new(place))))) };
        Ok(())
    })
}

/// Lets go of a device; its layers keep it until they are freed.
///
/// # Safety
/// `backend` is null, or came from [`bitnet_backend_open`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_backend_free(backend: *mut Device) {
    call(|| {
        if !backend.is_null() {
            // SAFETY: by the caller.
            drop(unsafe { Box::from_raw(backend) });
        }
        Ok(())
    });
}

/// One line about the device.
///
/// # Safety
/// An open device; a buffer of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_backend_describe(
    backend: *const Device,
    out: *mut c_char,
    len: usize,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let Device(place) = unsafe { backend.as_ref() }.ok_or_else(|| Failure::null("backend"))?;
        let words = match &**place {
            Place::Cpu(backend) => backend.describe(),
            #[cfg(feature = "cuda")]
            Place::Cuda(shared) => shared.describe(),
        };
        // SAFETY: by the caller.
        unsafe { copy_text(&words, out, len) }
    })
}

/// Packs `n` rows of `k` ternaries and puts them on the device.
///
/// # Safety
/// An open device; `ternaries` has `n * k` elements in host memory; `out` is null or can hold a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_linear_new(
    backend: *const Device,
    ternaries: *const i8,
    n: usize,
    k: usize,
    scale: f32,
    out: *mut *mut Linear,
) -> Status {
    call(|| {
        let out = NonNull::new(out).ok_or_else(|| Failure::null("out"))?;
        // SAFETY: by the caller.
        unsafe { out.write(std::ptr::null_mut()) };
        // SAFETY: by the caller.
        let Device(place) = unsafe { backend.as_ref() }.ok_or_else(|| Failure::null("backend"))?;
        if ternaries.is_null() {
            return Err(Failure::null("ternaries"));
        }
        within("n", n, MAX_ROWS)?;
        within("k", k, MAX_K)?;
        // SAFETY: by the caller; the product is below 2^44.
        let ternaries = unsafe { std::slice::from_raw_parts(ternaries, n * k) };
        let packed = PackedW2::from_ternaries(ternaries, k, &[(n, scale)])
            .map_err(|error| Failure::argument(error.to_string()))?;
        let weights = match &**place {
            Place::Cpu(backend) => Weights::Cpu(upload(backend, packed)?),
            #[cfg(feature = "cuda")]
            Place::Cuda(shared) => Weights::Cuda(shared.upload(packed)?),
        };
        let linear = Linear { place: Arc::clone(place), weights, k };
        // SAFETY: by the caller.
        unsafe { out.write(Box::into_raw(Box::new(linear))) };
        Ok(())
    })
}

fn upload<B: Backend>(backend: &B, packed: PackedW2) -> Result<PackedLinear<B>, OpError> {
    let mut w = PackedLinear::alloc(backend, "weights", packed.k, packed.segments)?;
    w.write_rows(backend, 0, &packed.words)?;
    backend.synchronize()?;
    Ok(w)
}

pub(crate) fn within(what: &str, found: usize, most: usize) -> Result<(), Failure> {
    if (1..=most).contains(&found) {
        return Ok(());
    }
    Err(Failure::argument(format!("{what} = {found} is out of range; allowed: 1 to {most}")))
}

/// Frees a layer, when all that was queued with it has run.
///
/// # Safety
/// `linear` is null, or came from [`bitnet_linear_new`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_linear_free(linear: *mut Linear) {
    call(|| {
        if !linear.is_null() {
            // SAFETY: by the caller.
            drop(unsafe { Box::from_raw(linear) });
        }
        Ok(())
    });
}

/// Bytes of the quantised rows, and where their statistics start in a workspace.
fn stats_start(m: usize, k: usize) -> usize {
    (m * act_bytes(k)).next_multiple_of(256)
}

/// Bytes of device memory that a product of `m` rows takes beside its tensors; none on the CPU.
///
/// # Safety
/// A living layer; `out` is null or can hold a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_linear_workspace(
    linear: *const Linear,
    m: usize,
    out: *mut usize,
) -> Status {
    call(|| {
        let out = NonNull::new(out).ok_or_else(|| Failure::null("out"))?;
        // SAFETY: by the caller.
        let linear = unsafe { linear.as_ref() }.ok_or_else(|| Failure::null("linear"))?;
        if m > 0 {
            within("m", m, MAX_ROWS)?;
        }
        let bytes = match linear.weights {
            Weights::Cpu(_) => 0,
            #[cfg(feature = "cuda")]
            Weights::Cuda(_) => stats_start(m, linear.k) + 8 * m,
        };
        // SAFETY: by the caller.
        unsafe { out.write(bytes) };
        Ok(())
    })
}

/// `y[m, n] = x[m, k] . w^T`, the rows, of `bitnet_dtype` f32, f16 or bf16, quantised to int8 one by one.
///
/// # Safety
/// A living layer. `x` has `m * k`, `y` `m * n` elements and the workspace `workspace_bytes`, in host memory for a layer on
/// the CPU, in memory of the layer's device otherwise; there `stream` is null or a stream of the device's primary
/// context, all of them live until what is queued has run, and the stream as long as the layer.
#[allow(clippy::too_many_arguments, reason = "a C function has no structs by value")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_linear_forward(
    linear: *const Linear,
    x: *const c_void,
    dtype: i32,
    m: usize,
    y: *mut f32,
    workspace: *mut c_void,
    workspace_bytes: usize,
    stream: *mut c_void,
) -> Status {
    call(|| {
        let dtype = Dtype::given("x", dtype)?;
        if !FLOATS.contains(&dtype) {
            return Err(Failure::argument(format!("x is of {dtype:?}; allowed: {FLOATS:?}")));
        }
        // SAFETY: by the caller.
        let linear = unsafe { linear.as_ref() }.ok_or_else(|| Failure::null("linear"))?;
        if m == 0 {
            return Ok(());
        }
        within("m", m, MAX_ROWS)?;
        let place = &*linear.place;
        there("x", x, place.align(dtype))?;
        there("y", y.cast(), place.align(Dtype::F32))?;
        let (x, y) = ((x, dtype), y.cast());
        match (place, &linear.weights) {
            (Place::Cpu(backend), Weights::Cpu(w)) => {
                let acts = QuantActs::alloc(backend, m, linear.k)?;
                // SAFETY: by the caller.
                unsafe { product(backend, w, x, acts, y, m)? }
                Ok(())
            }
            #[cfg(feature = "cuda")]
            (Place::Cuda(shared), Weights::Cuda(w)) => {
                let need = stats_start(m, linear.k) + 8 * m;
                if workspace.is_null() || workspace_bytes < need {
                    return Err(Failure::argument(format!(
                        "the workspace has {workspace_bytes} bytes, {need} are needed for {m} rows; \
                         ask bitnet_linear_workspace"
                    )));
                }
                there("the workspace", workspace, place.align(dtype))?;
                let words = m * act_bytes(linear.k) / 4;
                let stats = workspace.wrapping_byte_add(stats_start(m, linear.k));
                let run = |backend: &_| {
                    // SAFETY: by the caller, for the lengths that were just compared; the parts of the workspace do not overlap.
                    unsafe {
                        let acts = QuantActs {
                            acts: CudaBackend::result(backend, "workspace", workspace, words)?,
                            stats: CudaBackend::result(backend, "workspace", stats, m)?,
                        };
                        product(backend, w, x, acts, y, m)
                    }
                };
                // SAFETY: by the caller.
                unsafe { shared.on(stream, run)? }
                Ok(())
            }
            #[cfg(feature = "cuda")]
            _ => unreachable!("a layer's weights are where its backend is"),
        }
    })
}

/// Refuses no memory, and memory that is not aligned.
fn there(what: &str, data: *const c_void, align: usize) -> Result<(), Failure> {
    if data.is_null() {
        return Err(Failure::null(what));
    }
    if !data.addr().is_multiple_of(align) {
        let at = data.addr();
        let words = format!("{what} starts at {at:#x}, which is no multiple of {align} bytes");
        return Err(Failure::argument(words));
    }
    Ok(())
}

/// Queues the product of `m` rows of a float dtype.
///
/// # Safety
/// As [`bitnet_linear_forward`], whose checks were made.
unsafe fn product<B: Lends>(
    backend: &B,
    w: &PackedLinear<B>,
    x: (*const c_void, Dtype),
    mut acts: QuantActs<B>,
    y: *mut c_void,
    m: usize,
) -> Result<(), OpError> {
    let (acts, len) = (&mut acts, m * w.n());
    // SAFETY: by the caller.
    unsafe {
        let mut out = backend.result("y", y, len)?;
        quantise(backend, x, acts, [m, w.k()])?;
        let to = &mut out;
        match m {
            1 => backend.w2a8_gemv(W2a8Gemv { w, acts, y: to, variant: None })?,
            _ => {
                let (chained, behind) = (false, Default::default());
                backend.w2a8_gemm(W2a8Gemm {
                    chained,
                    behind,
                    w,
                    acts,
                    y: to,
                    m,
                    variant: None,
                })?;
            }
        }
        backend.give(&out, y, len)
    }
}

#[cfg(feature = "cuda")]
pub(crate) mod cuda {
    //! One backend for all layers of a device, which is set to the stream of each call.

    use std::collections::HashMap;

    use bitnet_gpu::driver::{CudaOptions, Stream};

    use super::*;

    pub(crate) struct Shared(Mutex<State>);

    struct State {
        backend: CudaBackend,
        /// The caller's streams, by their handles.
        streams: HashMap<usize, Stream>,
    }

    impl Shared {
        pub(super) fn open(ordinal: u32) -> Result<Self, OpError> {
            let backend = CudaBackend::open(CudaOptions::new(ordinal))?;
            Ok(Self(Mutex::new(State { backend, streams: HashMap::new() })))
        }

        /// Runs `body` with the backend and its pool's stream, alone.
        pub(crate) fn with<R>(&self, body: impl FnOnce(&CudaBackend) -> R) -> R {
            body(&hold(&self.0).backend)
        }

        /// Runs `body` with the backend set to the caller's stream, alone.
        ///
        /// # Safety
        /// `stream` is null or a stream of the device's primary context, and lives as long as the layers of it.
        pub(crate) unsafe fn on<R>(
            &self,
            stream: *mut c_void,
            body: impl FnOnce(&CudaBackend) -> Result<R, OpError>,
        ) -> Result<R, OpError> {
            let mut state = hold(&self.0);
            let State { backend, streams } = &mut *state;
            let device = backend.cuda().device().clone();
            // SAFETY: by the caller.
            let theirs = || unsafe { Stream::foreign(&device, stream) };
            let stream = streams.entry(stream.addr()).or_insert_with(theirs).clone();
            let own = backend.set_stream(stream)?;
            let done = body(backend);
            // New weights are uploaded in an order of their own.
            backend.set_stream(own)?;
            done
        }

        pub(super) fn describe(&self) -> String {
            hold(&self.0).backend.describe()
        }

        pub(super) fn upload(
            &self,
            packed: PackedW2,
        ) -> Result<PackedLinear<CudaBackend>, OpError> {
            super::upload(&hold(&self.0).backend, packed)
        }
    }
}
