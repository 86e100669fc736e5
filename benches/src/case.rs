//! One measured operation, written once for both backends.

use std::num::NonZeroUsize;
use std::thread::{self, available_parallelism};

use bitnet_gpu::ops::{Backend, Element, Float, OpError, Tensor};

use crate::same_bits;

/// An operation at one shape: its inputs on the host, its tensors on a backend, its one call.
pub trait Case {
    /// The tensors of one copy of the case.
    type Tensors<B: Backend>;

    /// The shape, as a row of the report is named.
    fn name(&self) -> String;

    /// Which of several kernels runs; empty where there is one.
    fn variant(&self) -> String {
        String::new()
    }

    /// Bytes that one call has to move: weights, scales, activations and outputs, each once.
    fn bytes(&self) -> u64;

    /// Whether copies of the tensors make a cold regime. Not where a call touches a small part of
    /// them, nor where they always come from the kernel before.
    fn rotates(&self) -> bool {
        true
    }

    /// Uploads the inputs. Outputs are filled with bytes of 0xff, so that a call that writes
    /// nothing cannot pass.
    ///
    /// # Errors
    /// Out of memory; a failed copy.
    fn tensors<B: Backend>(&self, backend: &B) -> Result<Self::Tensors<B>, OpError>;

    /// Queues the operation.
    ///
    /// # Errors
    /// A shape that is refused; a failed launch.
    fn run<B: Backend>(&self, backend: &B, tensors: &mut Self::Tensors<B>) -> Result<(), OpError>;

    /// Refuses a result that is not the CPU backend's. Kernels that keep the one arithmetic give its
    /// very bits; a case that runs another kind says here how far it may be off.
    ///
    /// # Errors
    /// Where the two differ.
    fn compare(&self, found: &[u32], expected: &[u32]) -> anyhow::Result<()> {
        same_bits(&self.variant(), found, expected)
    }

    /// Everything that one call on fresh tensors has written, as bits.
    ///
    /// # Errors
    /// Whatever the operation failed with.
    fn output<B: Backend>(
        &self,
        backend: &B,
        tensors: &Self::Tensors<B>,
    ) -> Result<Vec<u32>, OpError>;
}

/// The bits of a buffer of floats, widened.
///
/// # Errors
/// Whatever an earlier operation failed with.
pub fn bits<B: Backend, T: Float>(backend: &B, buf: &B::Buf<T>) -> Result<Vec<u32>, OpError> {
    let mut values = vec![T::default(); buf.len()];
    backend.read(buf, 0, &mut values)?;
    // On all threads: of the largest tensors most of the time goes into the pages of new memory.
    let mut bits = vec![0; values.len()];
    let threads = available_parallelism().map_or(1, NonZeroUsize::get);
    let part = bits.len().div_ceil(threads).max(1 << 16);
    thread::scope(|scope| {
        for (bits, values) in bits.chunks_mut(part).zip(values.chunks(part)) {
            scope.spawn(move || {
                bits.iter_mut().zip(values).for_each(|(bits, v)| *bits = v.widen().to_bits());
            });
        }
    });
    Ok(bits)
}

/// As many rows of `T` as have the bytes of `m` rows of `f32`: where a shape stands for a size of memory.
pub const fn rows_of<T>(m: usize) -> usize {
    m * size_of::<f32>() / size_of::<T>()
}

/// The name of an element type, as the names of cases have it.
pub const fn type_name<T: Float>() -> &'static str {
    T::TYPE.name()
}

/// A buffer that holds `values`.
///
/// # Errors
/// Out of memory; a failed copy.
pub fn upload<B: Backend, T: Element>(backend: &B, values: &[T]) -> Result<B::Buf<T>, OpError> {
    let mut buf = backend.alloc("bench", values.len())?;
    backend.write(&mut buf, 0, values)?;
    Ok(buf)
}

/// A buffer for `len` outputs, every byte 0xff.
///
/// # Errors
/// Out of memory; a failed fill.
pub fn blank<B: Backend, T: Element>(backend: &B, len: usize) -> Result<B::Buf<T>, OpError> {
    let mut buf = backend.alloc("bench", len)?;
    backend.fill(&mut buf, 0xff)?;
    Ok(buf)
}
