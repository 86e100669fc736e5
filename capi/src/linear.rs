//! Ternary linear layers on the caller's own memory: host memory on the CPU, device memory and a stream of the
//! caller's on a GPU.

use std::ffi::{c_char, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::device_choice::{self, BackendChoice};
use bitnet_gpu::ops::act_quant::{ActQuant, Source};
use bitnet_gpu::ops::w2a8_gemm::W2a8Gemm;
use bitnet_gpu::ops::w2a8_gemv::W2a8Gemv;
use bitnet_gpu::ops::{Backend, Element, OpError, PackedLinear, QuantActs, RowType};
use bitnet_gpu::pack::PackedW2;
use contract::w2a8::{MAX_K, MAX_ROWS, act_bytes};

use crate::status::{Failure, Status, call};
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
    n: usize,
    k: usize,
}

enum Weights {
    Cpu(PackedLinear<CpuBackend>),
    #[cfg(feature = "cuda")]
    Cuda(PackedLinear<bitnet_gpu::ops::CudaBackend>),
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
        let linear = Linear { place: Arc::clone(place), weights, n, k };
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

/// `y[m, n] = x[m, k] . w^T`, the activations quantised row by row to int8.
///
/// # Safety
/// A living layer. `x` has `m * k`, `y` `m * n` elements and the workspace `workspace_bytes`, in host memory for a layer on
/// the CPU, in memory of the layer's device otherwise; there `stream` is null or a stream of the device's primary
/// context, all of them live until what is queued has run, and the stream as long as the layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_linear_forward(
    linear: *const Linear,
    x: *const f32,
    m: usize,
    y: *mut f32,
    workspace: *mut c_void,
    workspace_bytes: usize,
    stream: *mut c_void,
) -> Status {
    // SAFETY: by the caller.
    unsafe {
        bitnet_linear_forward_of(linear, x.cast(), 0, m, y, workspace, workspace_bytes, stream)
    }
}

/// The same of rows of an element: `dtype` is 0 for f32, 1 for f16, 2 for bf16.
///
/// # Safety
/// As for [`bitnet_linear_forward`].
#[allow(clippy::too_many_arguments, reason = "a C function has no structs by value")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_linear_forward_of(
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
        let element = match dtype {
            0 => RowType::F32,
            1 => RowType::F16,
            2 => RowType::Bf16,
            _ => {
                let allowed = "allowed: 0 (f32), 1 (f16), 2 (bf16)";
                return Err(Failure::argument(format!("dtype = {dtype} is none; {allowed}")));
            }
        };
        // SAFETY: by the caller.
        let linear = unsafe { linear.as_ref() }.ok_or_else(|| Failure::null("linear"))?;
        if m == 0 {
            return Ok(());
        }
        within("m", m, MAX_ROWS)?;
        if x.is_null() || y.is_null() {
            return Err(Failure::null(if x.is_null() { "x" } else { "y" }));
        }
        match (&*linear.place, &linear.weights) {
            (Place::Cpu(backend), Weights::Cpu(w)) => {
                let bytes = if element == RowType::F32 { 4 } else { 2 };
                if !x.addr().is_multiple_of(bytes) || !y.is_aligned() {
                    let wanted = "x and y must be aligned to their elements";
                    return Err(Failure::argument(wanted));
                }
                let mut acts = QuantActs::alloc(backend, m, linear.k)?;
                let mut out = backend.alloc("output", m * linear.n)?;
                let len = m * linear.k;
                // SAFETY: by the caller.
                unsafe {
                    match element {
                        RowType::F32 => {
                            let x = &copied::<f32>(backend, x, len)?;
                            forward(backend, w, Source::Plain { x }, &mut acts, &mut out, m)?;
                        }
                        RowType::F16 => {
                            let x = &copied(backend, x, len)?;
                            forward(backend, w, Source::F16 { x }, &mut acts, &mut out, m)?;
                        }
                        RowType::Bf16 => {
                            let x = &copied(backend, x, len)?;
                            forward(backend, w, Source::Bf16 { x }, &mut acts, &mut out, m)?;
                        }
                    }
                }
                // SAFETY: by the caller, who may leave it uninitialised: zeroed, it is plain numbers.
                let y = unsafe {
                    y.write_bytes(0, m * linear.n);
                    std::slice::from_raw_parts_mut(y, m * linear.n)
                };
                backend.read(&out, 0, y)?;
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
                let at = [x.addr(), y.addr(), workspace.addr()].map(|addr| addr as u64);
                // SAFETY: by the caller, for the lengths that were just compared.
                unsafe { shared.forward(w, m, (at, element), stream) }
            }
            #[cfg(feature = "cuda")]
            _ => unreachable!("a layer's weights are where its backend is"),
        }
    })
}

/// The caller's rows in a buffer.
///
/// # Safety
/// `x` starts so many elements, and is aligned to them.
unsafe fn copied<T: Element>(
    backend: &CpuBackend,
    x: *const c_void,
    len: usize,
) -> Result<<CpuBackend as Backend>::Buf<T>, OpError> {
    // SAFETY: by the caller.
    let x = unsafe { std::slice::from_raw_parts(x.cast::<T>(), len) };
    let mut rows = backend.alloc("input", len)?;
    backend.write(&mut rows, 0, x)?;
    Ok(rows)
}

fn forward<B: Backend>(
    backend: &B,
    w: &PackedLinear<B>,
    source: Source<'_, B>,
    acts: &mut QuantActs<B>,
    y: &mut B::Buf<f32>,
    m: usize,
) -> Result<(), OpError> {
    backend.act_quant(ActQuant { source, out: acts, m, k: w.k() })?;
    match m {
        1 => backend.w2a8_gemv(W2a8Gemv { w, acts, y, variant: None }),
        _ => {
            let (chained, behind) = (false, Default::default());
            backend.w2a8_gemm(W2a8Gemm { chained, behind, w, acts, y, m, variant: None })
        }
    }
}

#[cfg(feature = "cuda")]
pub(crate) mod cuda {
    //! One backend for all layers of a device, which is set to the stream of each call.

    use std::collections::HashMap;

    use bitnet_gpu::driver::{CudaOptions, Stream};
    use bitnet_gpu::memory::{DeviceBuffer, Pool};
    use bitnet_gpu::ops::CudaBackend;

    use super::*;

    pub(crate) struct Shared(Mutex<State>);

    struct State {
        backend: CudaBackend,
        /// The caller's streams, by their handles.
        streams: HashMap<usize, Stream>,
    }

    /// The caller's rows, and what they are multiplied with.
    struct Rows<'a> {
        pool: &'a Pool,
        stream: &'a Stream,
        w: &'a PackedLinear<CudaBackend>,
        m: usize,
        x: u64,
    }

    impl Rows<'_> {
        /// Queues their product.
        ///
        /// # Safety
        /// As [`Shared::forward`], of rows of `T`.
        unsafe fn product<T: Element>(
            &self,
            backend: &CudaBackend,
            source: impl Fn(&DeviceBuffer<T>) -> Source<'_, CudaBackend>,
            acts: &mut QuantActs<CudaBackend>,
            y: &mut DeviceBuffer<f32>,
        ) -> Result<(), Failure> {
            let Self { pool, stream, w, m, x } = *self;
            // SAFETY: by the caller.
            let x = unsafe { DeviceBuffer::borrowed(pool, stream, x, m * w.k(), "x")? };
            Ok(super::forward(backend, w, source(&x), acts, y, m)?)
        }
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

        /// Queues a product on the caller's stream: `at` are the addresses of `x`, which has such elements, `y` and a workspace.
        ///
        /// # Safety
        /// As [`bitnet_linear_forward`], with a workspace that is large enough.
        pub(super) unsafe fn forward(
            &self,
            w: &PackedLinear<CudaBackend>,
            m: usize,
            ([x, y, workspace], element): ([u64; 3], RowType),
            stream: *mut c_void,
        ) -> Result<(), Failure> {
            let mut state = hold(&self.0);
            let State { backend, streams } = &mut *state;
            let device = backend.cuda().device().clone();
            // SAFETY: by the caller: its stream outlives the layer.
            let theirs = || unsafe { Stream::foreign(&device, stream) };
            let stream = streams.entry(stream.addr()).or_insert_with(theirs).clone();
            let pool = backend.cuda().pool().clone();
            let stats = workspace + stats_start(m, w.k()) as u64;
            let words = m * act_bytes(w.k()) / 4;
            // SAFETY: by the caller; the parts of the workspace do not overlap.
            let (mut y, mut acts) = unsafe {
                let y = DeviceBuffer::borrowed(&pool, &stream, y, m * w.n(), "y")?;
                let acts = DeviceBuffer::borrowed(&pool, &stream, workspace, words, "workspace")?;
                let stats = DeviceBuffer::borrowed(&pool, &stream, stats, m, "workspace")?;
                (y, QuantActs { acts, stats })
            };
            let own = backend.set_stream(stream.clone())?;
            let rows = Rows { pool: &pool, stream: &stream, w, m, x };
            let (acts, y) = (&mut acts, &mut y);
            // SAFETY: by the caller.
            let done = unsafe {
                match element {
                    RowType::F32 => rows.product(backend, |x| Source::Plain { x }, acts, y),
                    RowType::F16 => rows.product(backend, |x| Source::F16 { x }, acts, y),
                    RowType::Bf16 => rows.product(backend, |x| Source::Bf16 { x }, acts, y),
                }
            };
            // New weights are uploaded in an order of their own.
            backend.set_stream(own)?;
            done
        }
    }
}
