//! Layers on the caller's tensors: weights packed on a device once, then any number of forwards.
//!
//! What a layer does is an `Operation`, written once for both backends. On the CPU a forward copies the caller's
//! tensors in and out; on a GPU it borrows them, and takes what it needs besides from the caller's workspace.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::ops::{Backend, Element, OpError};

use crate::linear::{Device, Place, hold};
use crate::status::{Failure, Status, call};
use crate::tensor::{Dtype, Tensor, View, describe, refused};

/// `bitnet_layer`.
pub struct Layer {
    place: Arc<Place>,
    operation: On,
}

/// One call at a time.
enum On {
    Cpu(Mutex<Box<dyn Operation<CpuBackend>>>),
    #[cfg(feature = "cuda")]
    Cuda(Mutex<Box<dyn Operation<bitnet_gpu::ops::CudaBackend>>>),
}

/// What comes out of a layer.
pub(crate) struct Output {
    pub(crate) dtype: Dtype,
    pub(crate) sizes: Vec<usize>,
    /// Dimensions by their place in memory, the last the nearest.
    pub(crate) order: &'static [usize],
}

/// The tensors of one forward, checked.
pub(crate) struct Tensors {
    pub(crate) x: View,
    /// What a layer takes beside `x`.
    pub(crate) other: Option<View>,
    pub(crate) y: View,
}

/// What a layer does.
pub(crate) trait Operation<B: Backend>: Send {
    /// What comes out for `x`.
    fn output(&self, x: &View) -> Result<Output, Failure>;

    /// What the layer takes beside `x`, if anything.
    fn other(&self) -> Option<&'static str> {
        Some("residual")
    }

    /// Refuses another tensor beside `x` than one of the output's dtype and shape.
    fn beside(&self, _x: &View, other: &View, output: &Output) -> Result<(), Failure> {
        other.of(&[output.dtype])?.shaped(&output.sizes)
    }

    /// Compares the tensors, each of which has its dtype and shape.
    fn check(&self, tensors: &Tensors) -> Result<(), Failure>;

    /// Queues the operation.
    ///
    /// # Safety
    /// The tensors' memory is what they say, on the backend's device.
    unsafe fn run(&self, backend: &B, tensors: &Tensors) -> Result<(), OpError>;
}

/// A layer that is to be made on some backend.
pub(crate) trait Build {
    fn build<B: Lends>(self, backend: &B) -> Result<Box<dyn Operation<B>>, Failure>;
}

/// A backend that works on memory of a caller's.
pub(crate) trait Lends: Backend {
    /// The caller's elements, to be read.
    ///
    /// # Safety
    /// `len` elements are there until what is queued has run.
    unsafe fn lent<T: Element>(
        &self,
        what: &'static str,
        data: *const c_void,
        len: usize,
    ) -> Result<Self::Buf<T>, OpError>;

    /// A buffer for the caller's result.
    ///
    /// # Safety
    /// As [`Lends::lent`], and nobody else touches them.
    unsafe fn result<T: Element>(
        &self,
        what: &'static str,
        data: *mut c_void,
        len: usize,
    ) -> Result<Self::Buf<T>, OpError>;

    /// Gives the caller what the buffer of [`Lends::result`] holds.
    ///
    /// # Safety
    /// As there.
    unsafe fn give<T: Element>(
        &self,
        from: &Self::Buf<T>,
        data: *mut c_void,
        len: usize,
    ) -> Result<(), OpError>;
}

impl Lends for CpuBackend {
    unsafe fn lent<T: Element>(
        &self,
        what: &'static str,
        data: *const c_void,
        len: usize,
    ) -> Result<Self::Buf<T>, OpError> {
        let mut buffer = self.alloc(what, len)?;
        // SAFETY: by the caller, who checked alignment and length.
        self.write(&mut buffer, 0, unsafe { std::slice::from_raw_parts(data.cast(), len) })?;
        Ok(buffer)
    }

    unsafe fn result<T: Element>(
        &self,
        what: &'static str,
        _data: *mut c_void,
        len: usize,
    ) -> Result<Self::Buf<T>, OpError> {
        self.alloc(what, len)
    }

    unsafe fn give<T: Element>(
        &self,
        from: &Self::Buf<T>,
        data: *mut c_void,
        len: usize,
    ) -> Result<(), OpError> {
        // SAFETY: by the caller, who may leave it uninitialised: zeroed, it is plain numbers.
        let to = unsafe {
            data.cast::<T>().write_bytes(0, len);
            std::slice::from_raw_parts_mut(data.cast(), len)
        };
        self.read(from, 0, to)
    }
}

#[cfg(feature = "cuda")]
impl Lends for bitnet_gpu::ops::CudaBackend {
    unsafe fn lent<T: Element>(
        &self,
        what: &'static str,
        data: *const c_void,
        len: usize,
    ) -> Result<Self::Buf<T>, OpError> {
        /// An address of no memory, for tensors of which only the shape is asked.
        const NOWHERE: u64 = 1 << 33;
        let addr = if data.is_null() { NOWHERE } else { data.addr() as u64 };
        let cuda = self.cuda();
        // SAFETY: by the caller.
        let borrowed = unsafe {
            bitnet_gpu::memory::DeviceBuffer::borrowed(cuda.pool(), cuda.stream(), addr, len, what)
        };
        Ok(borrowed?)
    }

    unsafe fn result<T: Element>(
        &self,
        what: &'static str,
        data: *mut c_void,
        len: usize,
    ) -> Result<Self::Buf<T>, OpError> {
        // SAFETY: by the caller.
        unsafe { self.lent(what, data, len) }
    }

    unsafe fn give<T: Element>(
        &self,
        _from: &Self::Buf<T>,
        _data: *mut c_void,
        _len: usize,
    ) -> Result<(), OpError> {
        Ok(())
    }
}

/// The place of a new layer, and where its handle goes, which is null until then.
///
/// # Safety
/// `backend` is null or open; `out` is null or can hold a pointer.
pub(crate) unsafe fn begin<'a>(
    backend: *const Device,
    out: *mut *mut Layer,
) -> Result<(&'a Arc<Place>, NonNull<*mut Layer>), Failure> {
    let out = NonNull::new(out).ok_or_else(|| Failure::null("out"))?;
    // SAFETY: by the caller.
    unsafe { out.write(std::ptr::null_mut()) };
    // SAFETY: by the caller.
    let Device(place) = unsafe { backend.as_ref() }.ok_or_else(|| Failure::null("backend"))?;
    Ok((place, out))
}

/// Makes a layer and gives out its handle.
pub(crate) fn make(
    place: &Arc<Place>,
    out: NonNull<*mut Layer>,
    what: impl Build,
) -> Result<(), Failure> {
    let operation = match &**place {
        Place::Cpu(backend) => On::Cpu(Mutex::new(what.build(backend)?)),
        #[cfg(feature = "cuda")]
        Place::Cuda(shared) => On::Cuda(shared.with(|backend| {
            let operation = what.build(backend)?;
            backend.synchronize()?;
            Ok::<_, Failure>(Mutex::new(operation))
        })?),
    };
    let layer = Box::new(Layer { place: Arc::clone(place), operation });
    // SAFETY: `begin` says that it can hold one.
    unsafe { out.write(Box::into_raw(layer)) };
    Ok(())
}

impl Layer {
    fn output(&self, x: &View) -> Result<Output, Failure> {
        match &self.operation {
            On::Cpu(operation) => hold(operation).output(x),
            #[cfg(feature = "cuda")]
            On::Cuda(operation) => hold(operation).output(x),
        }
    }

    /// The tensors of a forward, compared with the layer and with each other; `align` is what their memory has to start at,
    /// 0 where it is not looked at.
    ///
    /// # Safety
    /// Each is null or a `bitnet_tensor`.
    unsafe fn tensors(
        &self,
        x: *const Tensor,
        other: *const Tensor,
        y: *const Tensor,
        align: impl Fn(&View) -> usize,
    ) -> Result<Tensors, Failure> {
        // SAFETY: by the caller.
        let (x, y) = unsafe { (View::new("x", x)?, View::new("y", y)?) };
        // SAFETY: by the caller.
        let other = |what| unsafe { View::given(what, other) };
        let tensors = match &self.operation {
            On::Cpu(operation) => compared(&**hold(operation), x, other, y),
            #[cfg(feature = "cuda")]
            On::Cuda(operation) => compared(&**hold(operation), x, other, y),
        }?;
        for tensor in [&tensors.x, &tensors.y].into_iter().chain(&tensors.other) {
            let align = align(tensor);
            if align > 0 {
                tensor.there(align)?;
            }
        }
        Ok(tensors)
    }
}

/// The tensors of a forward, if the operation takes them; `other` is the one beside `x`, by the operation's name for it.
fn compared<B: Backend>(
    operation: &dyn Operation<B>,
    x: View,
    other: impl FnOnce(&'static str) -> Result<Option<View>, Failure>,
    y: View,
) -> Result<Tensors, Failure> {
    let output = operation.output(&x)?;
    y.of(&[output.dtype])?.shaped(&output.sizes)?;
    let other = match operation.other() {
        Some(what) => other(what)?,
        None if other("other")?.is_some() => {
            return Err(Failure::argument("this layer takes nothing beside x; pass NULL"));
        }
        None => None,
    };
    if let Some(other) = &other {
        operation.beside(&x, other, &output)?;
    }
    let tensors = Tensors { x, other, y };
    operation.check(&tensors)?;
    Ok(tensors)
}

/// The shape of a layer's output, and the bytes of its workspace.
///
/// # Safety
/// A living layer. `x` and `other` are null or `bitnet_tensor`s, whose memory is not touched; `y` is null or can hold one,
/// with its size in front; `workspace_bytes` is null or can hold a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_layer_plan(
    layer: *const Layer,
    x: *const Tensor,
    other: *const Tensor,
    y: *mut Tensor,
    workspace_bytes: *mut usize,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let layer = unsafe { layer.as_ref() }.ok_or_else(|| Failure::null("layer"))?;
        let to = NonNull::new(y).ok_or_else(|| Failure::null("y"))?;
        // SAFETY: by the caller.
        let mut shape = unsafe { crate::session::sized("y", y.cast_const())? };
        // SAFETY: by the caller.
        let output = layer.output(&unsafe { View::new("x", x)? })?;
        describe(&mut shape, output.dtype, &output.sizes, output.order);
        // SAFETY: by the caller.
        let tensors = unsafe { layer.tensors(x, other, &raw const shape, |_| 0)? };
        let bytes = match (&*layer.place, &layer.operation) {
            _ if tensors.y.len() == 0 => 0,
            (Place::Cpu(_), _) => 0,
            #[cfg(feature = "cuda")]
            (Place::Cuda(shared), On::Cuda(operation)) => {
                // SAFETY: nothing is launched.
                let run = |backend: &_| unsafe { hold(operation).run(backend, &tensors) };
                let counted = shared.with(|backend| backend.scratch_bytes(|| run(backend)));
                counted.map_err(refused)?
            }
            #[cfg(feature = "cuda")]
            _ => unreachable!("a layer's weights are where its backend is"),
        };
        // SAFETY: by the caller.
        unsafe { to.write(shape) };
        if let Some(out) = NonNull::new(workspace_bytes) {
            // SAFETY: by the caller.
            unsafe { out.write(bytes) };
        }
        Ok(())
    })
}

/// Runs a layer.
///
/// # Safety
/// A living layer. `x`, `other` (unless it is null) and `y` are `bitnet_tensor`s and their memory is what they say, in host
/// memory for a layer on the CPU, in memory of the layer's device otherwise, with the workspace; there `stream` is null or a
/// stream of the device's primary context, all of them live until what is queued has run, and the stream as long as the layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_layer_forward(
    layer: *const Layer,
    x: *const Tensor,
    other: *const Tensor,
    y: *const Tensor,
    workspace: *mut c_void,
    workspace_bytes: usize,
    stream: *mut c_void,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let layer = unsafe { layer.as_ref() }.ok_or_else(|| Failure::null("layer"))?;
        let align = |tensor: &View| layer.place.align(tensor.dtype);
        // SAFETY: by the caller.
        let tensors = unsafe { layer.tensors(x, other, y, align)? };
        if tensors.y.len() == 0 {
            return Ok(());
        }
        match (&*layer.place, &layer.operation) {
            (Place::Cpu(backend), On::Cpu(operation)) => {
                // SAFETY: by the caller.
                unsafe { hold(operation).run(backend, &tensors) }.map_err(refused)
            }
            #[cfg(feature = "cuda")]
            (Place::Cuda(shared), On::Cuda(operation)) => {
                let run = |backend: &_| {
                    // SAFETY: by the caller.
                    unsafe { hold(operation).run(backend, &tensors) }
                };
                let lent = (workspace, workspace_bytes, stream);
                // SAFETY: by the caller.
                unsafe { lend(shared, lent, run) }
            }
            #[cfg(feature = "cuda")]
            _ => unreachable!("a layer's weights are where its backend is"),
        }
    })
}

/// Runs `body` on the caller's stream, with the caller's workspace.
///
/// # Safety
/// What a forward says of workspace and stream.
#[cfg(feature = "cuda")]
pub(crate) unsafe fn lend(
    shared: &crate::linear::cuda::Shared,
    (workspace, bytes, stream): (*mut c_void, usize, *mut c_void),
    body: impl FnOnce(&bitnet_gpu::ops::CudaBackend) -> Result<(), OpError>,
) -> Result<(), Failure> {
    let align = bitnet_gpu::memory::BORROWED_ALIGN;
    let at = workspace.addr() as u64;
    if !at.is_multiple_of(align) {
        let words =
            format!("the workspace starts at {at:#x}, which is no multiple of {align} bytes");
        return Err(Failure::argument(words));
    }
    // Where there is none, none of its bytes is there.
    let bytes = if workspace.is_null() { 0 } else { bytes };
    // SAFETY: by the caller.
    let done =
        unsafe { shared.on(stream, |backend| backend.with_scratch(at, bytes, || body(backend))) };
    done.map_err(refused)
}

impl Place {
    /// What tensors of the caller's have to start at.
    pub(crate) fn align(&self, dtype: Dtype) -> usize {
        match self {
            Self::Cpu(_) => dtype.bytes(),
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => bitnet_gpu::memory::BORROWED_ALIGN as usize,
        }
    }
}

/// Frees a layer, when all that was queued with it has run.
///
/// # Safety
/// `layer` is null, or came from a function of this library and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_layer_free(layer: *mut Layer) {
    call(|| {
        if !layer.is_null() {
            // SAFETY: by the caller.
            drop(unsafe { Box::from_raw(layer) });
        }
        Ok(())
    });
}
