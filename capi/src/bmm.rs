//! Batched products of matrices on the caller's tensors.

use std::ffi::c_void;
use std::ptr::NonNull;

use bitnet_gpu::cpu::CpuBackend;
use bitnet_gpu::ops::bmm::{Bmm, Layout, Operand};
use bitnet_gpu::ops::{Backend, Math, OpError};
use half::{bf16, f16};

use crate::layer::Lends;
use crate::linear::{Device, Place};
use crate::options;
use crate::status::{Failure, Status, call};
use crate::tensor::{Dtype, Tensor, View, refused};

/// `bitnet_bmm_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BmmOptions {
    struct_bytes: usize,
    alpha: f32,
    beta: f32,
    math: i32,
}

/// What a product has besides its tensors.
#[derive(Clone, Copy)]
struct How {
    alpha: f32,
    beta: f32,
    math: Math,
}

/// A matrix of each batch.
#[derive(Clone, Copy)]
struct Matrices {
    view: View,
    batch: usize,
    rows: usize,
    columns: usize,
    layout: Layout,
}

/// A product, checked but for what [`Bmm::check`] does.
struct Product {
    a: Matrices,
    b: Matrices,
    c: Matrices,
    how: How,
}

/// A factor as numbers of the sums' type.
trait Factor: Operand {
    fn factor(found: f32) -> Option<Self::Sum>;
}

macro_rules! floats {
    ($($element:ty)*) => { $(
        impl Factor for $element {
            fn factor(found: f32) -> Option<f32> {
                Some(found)
            }
        }
    )* };
}
floats! { f32 f16 bf16 }

impl Factor for i8 {
    fn factor(found: f32) -> Option<i32> {
        (found.fract() == 0.0 && found.abs() < 2.0f32.powi(31)).then_some(found as i32)
    }
}

impl Matrices {
    fn new(view: View) -> Result<Self, Failure> {
        let dims = view.sizes().len();
        let (batch, rows, columns) = match *view.sizes() {
            [rows, columns] => (1, rows, columns),
            [batch, rows, columns] => (batch, rows, columns),
            _ => {
                let words = format!("{} is no [m, k] and no [batch, m, k]", view.shown());
                return Err(Failure::argument(words));
            }
        };
        let [far, near] = [view.stride(dims - 2), view.stride(dims - 1)];
        let stride = if dims == 3 { view.stride(0) } else { 0 };
        // One row or one column lies either way.
        let transposed = columns > 1 && near != 1;
        let (ld, step) = if transposed { (near, far) } else { (far, near) };
        let [lines, len] = if transposed { [columns, rows] } else { [rows, columns] };
        if len > 1 && step != 1 || lines > 1 && ld < len {
            let words = "neither rows nor columns lie side by side; pass a contiguous copy";
            return Err(Failure::argument(format!("{}: {words}", view.shown())));
        }
        let ld = if lines > 1 { ld } else { len };
        let layout = Layout { at: 0, stride, ld, transposed };
        Ok(Self { view, batch, rows, columns, layout })
    }

    /// Refuses results that are not written row by row, or of which elements share a place.
    fn has_a_place_for_each(&self) -> Result<(), Failure> {
        let Self { view, batch, rows, columns, layout } = self;
        let stride = layout.stride;
        let apart = layout.span(1, *rows, *columns) <= stride;
        let last = (batch.max(&1) - 1).saturating_mul(stride).saturating_add(*columns);
        let between = *columns <= stride && last <= layout.ld;
        if view.len() == 0 || !layout.transposed && (*batch == 1 || apart || between) {
            return Ok(());
        }
        let words =
            "rows of the result have to lie side by side and apart; pass a contiguous tensor";
        Err(Failure::argument(format!("{}: {words}", view.shown())))
    }

    /// The matrices as a buffer of the caller's elements, which need not begin where buffers do.
    ///
    /// # Safety
    /// As [`Lends::lent`].
    unsafe fn lent<B: Lends, T: bitnet_gpu::ops::Element>(
        &self,
        backend: &B,
        align: usize,
    ) -> Result<Packed<B, T>, OpError> {
        let before = self.view.data.addr() % align;
        let start = self.view.data.wrapping_byte_sub(before);
        let layout = self.layout.at(before / size_of::<T>());
        let len = layout.span(self.batch, self.rows, self.columns);
        // SAFETY: by the caller; what stands in front of the matrices is not touched.
        let buffer = unsafe { backend.lent(self.view.what, start.cast_const(), len)? };
        Ok((buffer, layout))
    }

    /// The matrices in a buffer of our own, row by row in memory: what lies between rows of the caller's is not touched.
    ///
    /// # Safety
    /// The elements are there, and initialised.
    unsafe fn copied<T: bitnet_gpu::ops::Element>(
        &self,
        backend: &CpuBackend,
    ) -> Result<Packed<CpuBackend, T>, OpError> {
        let Self { view, batch, rows, columns, layout } = *self;
        let [lines, len] = if layout.transposed { [columns, rows] } else { [rows, columns] };
        // One matrix may stand for all.
        let (batch, stride) = if layout.stride == 0 { (1, 0) } else { (batch, lines * len) };
        let mut buffer = backend.alloc(view.what, batch * lines * len)?;
        let rows = (0..batch).flat_map(|i| (0..lines).map(move |line| (i, line)));
        for (i, line) in rows.filter(|_| len > 0) {
            let from = view.data.cast::<T>().wrapping_add(i * layout.stride + line * layout.ld);
            // SAFETY: by the caller; a row in memory.
            let row = unsafe { std::slice::from_raw_parts(from, len) };
            backend.write(&mut buffer, (i * lines + line) * len, row)?;
        }
        Ok((buffer, Layout { at: 0, stride, ld: len, ..layout }))
    }
}

/// Matrices in a buffer, and how they lie there.
type Packed<B, T> = (<B as Backend>::Buf<T>, Layout);

impl Product {
    /// # Safety
    /// Each is null or begins with its size.
    unsafe fn new(
        a: *const Tensor,
        b: *const Tensor,
        c: *const Tensor,
        options: *const BmmOptions,
    ) -> Result<Self, Failure> {
        // SAFETY: by the caller.
        let [a, b, c] = unsafe { [View::new("a", a)?, View::new("b", b)?, View::new("c", c)?] };
        let how = match options.is_null() {
            true => How { alpha: 1.0, beta: 0.0, math: Math::Exact },
            false => {
                // SAFETY: by the caller.
                let BmmOptions { alpha, beta, math, .. } =
                    unsafe { crate::session::sized("options", options)? };
                How { alpha, beta, math: options::math(math)? }
            }
        };
        let types = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I8];
        b.of(&[a.of(&types)?.dtype])?;
        c.of(&[if a.dtype == Dtype::I8 { Dtype::I32 } else { a.dtype }])?;
        let dims = a.sizes().len();
        let [a, b, c] = [Matrices::new(a)?, Matrices::new(b)?, Matrices::new(c)?];
        let agree = a.columns == b.rows
            && (a.rows, b.columns) == (c.rows, c.columns)
            && a.batch == c.batch
            && b.batch == c.batch
            && [b, c].iter().all(|m| m.view.sizes().len() == dims);
        if !agree {
            let [a, b, c] = [a, b, c].map(|m| m.view.shown());
            let words = "a is [batch, m, k], b is [batch, k, n] and c is [batch, m, n]";
            return Err(Failure::argument(format!("{words}: {a}; {b}; {c}")));
        }
        c.has_a_place_for_each()?;
        Ok(Self { a, b, c, how })
    }

    fn is_empty(&self) -> bool {
        self.c.view.len() == 0
    }

    fn check<T: Factor>(&self) -> Result<(), Failure> {
        let How { alpha, beta, math } = self.how;
        let all = T::factor(alpha).and(T::factor(beta));
        if all.is_none() {
            let words = format!("alpha = {alpha} and beta = {beta} of integers have to be whole");
            return Err(Failure::argument(words));
        }
        let exact = T::KIND == i8::KIND;
        if exact && math != Math::Exact {
            let words = "products of I8 are exact on tensor cores too; use BITNET_EXACT";
            return Err(Failure::argument(words));
        }
        Ok(())
    }

    /// Queues the product of `a` and `b` into `c`.
    fn run<B: Backend, T: Factor>(
        &self,
        backend: &B,
        (a, a_layout): Packed<B, T>,
        (b, b_layout): Packed<B, T>,
        (c, c_layout): (&mut B::Buf<T::Out>, Layout),
    ) -> Result<(), OpError> {
        let (m, n, k, batch) = (self.a.rows, self.b.columns, self.a.columns, self.a.batch);
        let factor = |found| T::factor(found).unwrap_or(T::ONE);
        let (alpha, beta) = (factor(self.how.alpha), factor(self.how.beta));
        let (math, variant) = (self.how.math, None);
        backend.bmm(Bmm {
            a: &a,
            a_layout,
            b: &b,
            b_layout,
            c,
            c_layout,
            m,
            n,
            k,
            batch,
            alpha,
            beta,
            math,
            variant,
        })
    }

    /// Runs the product on the CPU: rows are copied in, those of `c` where they are read, and out.
    ///
    /// # Safety
    /// As [`bitnet_bmm`].
    unsafe fn on_cpu<T: Factor>(&self, backend: &CpuBackend) -> Result<(), OpError> {
        let Matrices { view, batch, rows, columns, layout } = self.c;
        let ours = Layout::rows(rows, columns);
        let mut c = backend.alloc::<T::Out>(view.what, batch * rows * columns)?;
        let each = || (0..batch).flat_map(|i| (0..rows).map(move |row| (i, row)));
        let theirs = |(i, row)| view.data.cast::<T::Out>().wrapping_add(layout.index(i, row, 0));
        if self.how.beta != 0.0 {
            for at in each() {
                // SAFETY: by the caller; a row of `c`.
                let row = unsafe { std::slice::from_raw_parts(theirs(at), columns) };
                backend.write(&mut c, ours.index(at.0, at.1, 0), row)?;
            }
        }
        // SAFETY: by the caller.
        let (a, b) = unsafe { (self.a.copied(backend)?, self.b.copied(backend)?) };
        self.run::<CpuBackend, T>(backend, a, b, (&mut c, ours))?;
        for at in each() {
            // SAFETY: by the caller; a row of `c`, which nobody else touches.
            unsafe {
                let from = &c.as_slice()[ours.index(at.0, at.1, 0)..][..columns];
                theirs(at).copy_from_nonoverlapping(from.as_ptr(), columns);
            }
        }
        Ok(())
    }

    /// Queues the product on a GPU.
    ///
    /// # Safety
    /// As [`bitnet_bmm`].
    #[cfg(feature = "cuda")]
    unsafe fn on_cuda<T: Factor>(
        &self,
        backend: &bitnet_gpu::ops::CudaBackend,
    ) -> Result<(), OpError> {
        let align = bitnet_gpu::memory::BORROWED_ALIGN as usize;
        // SAFETY: by the caller.
        let ((mut c, layout), a, b) = unsafe {
            let c = self.c.lent(backend, align)?;
            (c, self.a.lent(backend, align)?, self.b.lent(backend, align)?)
        };
        self.run::<_, T>(backend, a, b, (&mut c, layout))
    }
}

/// Runs `$body` with `$T` as the element of the factors.
macro_rules! with_operand {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            Dtype::I8 => {
                type $T = i8;
                $body
            }
            other => crate::tensor::with_float!(other, $T => $body),
        }
    };
}

/// Bytes of the workspace that a product takes.
///
/// # Safety
/// An open backend; `a`, `b` and `c` are null or `bitnet_tensor`s, of whose memory only the address is looked at; `options` is
/// null or begins with its size; `out` is null or can hold a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_bmm_workspace(
    backend: *const Device,
    a: *const Tensor,
    b: *const Tensor,
    c: *const Tensor,
    options: *const BmmOptions,
    out: *mut usize,
) -> Status {
    call(|| {
        let out = NonNull::new(out).ok_or_else(|| Failure::null("out"))?;
        // SAFETY: by the caller.
        let Device(place) = unsafe { backend.as_ref() }.ok_or_else(|| Failure::null("backend"))?;
        // SAFETY: by the caller.
        let product = unsafe { Product::new(a, b, c, options)? };
        let bytes = with_operand!(product.a.view.dtype, T => {
            product.check::<T>()?;
            match &**place {
                _ if product.is_empty() => 0,
                Place::Cpu(_) => 0,
                #[cfg(feature = "cuda")]
                Place::Cuda(shared) => shared.with(|backend| {
                    // SAFETY: nothing is launched.
                    let run = || unsafe { product.on_cuda::<T>(backend) };
                    backend.scratch_bytes(run).map_err(refused)
                })?,
            }
        });
        // SAFETY: by the caller.
        unsafe { out.write(bytes) };
        Ok(())
    })
}

/// `c = alpha (a x b) + beta c`.
///
/// # Safety
/// As [`bitnet_bmm_workspace`], and the memory of the tensors is what they say, in host memory for the CPU, in memory of the
/// backend's device otherwise, with the workspace; there `stream` is null or a stream of the device's primary context, all of
/// them live until what is queued has run, and the stream as long as the backend. `c` overlaps no other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_bmm(
    backend: *const Device,
    a: *const Tensor,
    b: *const Tensor,
    c: *const Tensor,
    options: *const BmmOptions,
    workspace: *mut c_void,
    workspace_bytes: usize,
    stream: *mut c_void,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let Device(place) = unsafe { backend.as_ref() }.ok_or_else(|| Failure::null("backend"))?;
        // SAFETY: by the caller.
        let product = unsafe { Product::new(a, b, c, options)? };
        if product.is_empty() {
            return Ok(());
        }
        for matrices in [&product.a, &product.b, &product.c] {
            matrices.view.there(matrices.view.dtype.bytes())?;
        }
        with_operand!(product.a.view.dtype, T => {
            product.check::<T>()?;
            match &**place {
                // SAFETY: by the caller.
                Place::Cpu(backend) => unsafe { product.on_cpu::<T>(backend) }.map_err(refused),
                #[cfg(feature = "cuda")]
                Place::Cuda(shared) => {
                    let lent = (workspace, workspace_bytes, stream);
                    // SAFETY: by the caller.
                    let run = |backend: &_| unsafe { product.on_cuda::<T>(backend) };
                    // SAFETY: by the caller.
                    unsafe { crate::layer::lend(shared, lent, run) }
                }
            }
        })
    })
}
