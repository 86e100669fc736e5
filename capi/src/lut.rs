//! Linear layers by table lookup: exact ones of ternary weights, and the bit-serial form of 1 to 4 bits.

use bitnet_gpu::ops::lut_matmul::{
    Form, LossyLinear, LossyTables, LutBuildLossy, LutLinear, LutMatmul, LutMatmulLossy,
};
use bitnet_gpu::ops::{Backend, Math, OpError, QuantActs};
use bitnet_gpu::pack::{PackError, PackedBits, PackedTl};
use contract::lut_matmul::lossy::ACT_GROUP;

use crate::conv2d::bias_of;
use crate::layer::{Build, Layer, Lends, Operation, begin, make};
use crate::linear::Device;
use crate::options::{self, defaults, named};
use crate::product::{Epilogue, LinearLayer, Product, input, quantise, takes};
use crate::status::{Failure, Status, call};
use crate::tensor::{Dtype, Tensor, View};

/// `bitnet_lut_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LutOptions {
    struct_bytes: usize,
    form: i32,
    activation: i32,
    bits: usize,
    group: usize,
    scale: f32,
}

defaults!(LutOptions, bitnet_lut_options_default, {
    form: 0,
    activation: 0,
    bits: 2,
    group: 0,
    scale: 1.0,
});

/// `bitnet_lut_form`.
#[derive(Clone, Copy)]
enum Kind {
    Exact(Form),
    Bits,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Exact(Form::Tl1), Self::Exact(Form::Tl2), Self::Bits];

    fn number(self) -> i32 {
        match self {
            Self::Exact(Form::Tl1) => 0,
            Self::Exact(Form::Tl2) => 1,
            Self::Bits => 2,
        }
    }
}

struct OfTl<B: Backend>(LutLinear<B>);

struct OfBits<B: Backend>(LossyLinear<B>);

impl<B: Lends> Product<B> for OfTl<B> {
    fn sides(&self) -> [usize; 2] {
        [self.0.n(), self.0.k()]
    }

    fn takes(&self, x: &View) -> Result<(), Failure> {
        takes(x, Math::Exact)
    }

    unsafe fn run(
        &self,
        backend: &B,
        x: &View,
        y: &mut B::Buf<f32>,
        m: usize,
    ) -> Result<(), OpError> {
        let (w, k) = (&self.0, self.0.k());
        let mut acts = QuantActs::alloc(backend, m, k)?;
        // SAFETY: by the caller.
        unsafe { quantise(backend, (x.data.cast_const(), x.dtype), &mut acts, [m, k])? };
        backend.lut_matmul(LutMatmul { w, acts: &acts, y, m, variant: None })
    }
}

impl<B: Lends> Product<B> for OfBits<B> {
    fn sides(&self) -> [usize; 2] {
        [self.0.n(), self.0.k()]
    }

    fn takes(&self, x: &View) -> Result<(), Failure> {
        x.of(&[Dtype::F32]).map(drop)
    }

    unsafe fn run(
        &self,
        backend: &B,
        x: &View,
        y: &mut B::Buf<f32>,
        m: usize,
    ) -> Result<(), OpError> {
        let (w, k) = (&self.0, self.0.k());
        // The published one, where it divides the weights'.
        let shared = w.group() >= k || w.group().is_multiple_of(ACT_GROUP);
        let group = if shared { ACT_GROUP } else { w.group() };
        let mut tables = LossyTables::alloc(backend, m, k, group)?;
        // SAFETY: by the caller.
        let x = &unsafe { input::<B, f32>(backend, x)? };
        backend.lut_build_lossy(LutBuildLossy { x, tables: &mut tables, m })?;
        backend.lut_matmul_lossy(LutMatmulLossy { w, tables: &tables, y, m })
    }
}

/// A layer that is to be made.
struct New<'a> {
    weights: View,
    scales: Option<View>,
    zeros: Option<View>,
    bias: Option<&'a [f32]>,
    options: LutOptions,
}

/// Weights that cannot be packed are the caller's argument.
fn cannot(error: PackError) -> Failure {
    Failure::argument(error.to_string())
}

impl New<'_> {
    /// The matrix of 1 to 4 bits.
    fn bits(&self) -> Result<PackedBits, Failure> {
        let &Self { weights, scales, zeros, options: LutOptions { bits, group, .. }, .. } = self;
        let &[n, k] = weights.sizes() else { unreachable!("checked before") };
        let group = if group == 0 { k } else { group };
        let numbers = |view: View| -> Result<Vec<f32>, Failure> {
            view.of(&[Dtype::F32])?.shaped(&[n, k.div_ceil(group)])?;
            // SAFETY: by who passed it.
            Ok(unsafe { view.host::<f32>()? }.to_vec())
        };
        let scales = scales.ok_or_else(|| Failure::null("scales"))?;
        let (scales, zeros) = (numbers(scales)?, zeros.map(numbers).transpose()?);
        // SAFETY: by who passed the weights.
        let codes = unsafe { weights.host::<i8>()? };
        // A code below 0 has more bits than are allowed.
        let codes: Vec<u8> = codes.iter().map(|&code| code as u8).collect();
        PackedBits::from_codes(bits, &codes, k, group, scales, zeros).map_err(cannot)
    }
}

impl Build for New<'_> {
    fn build<B: Lends>(self, backend: &B) -> Result<Box<dyn Operation<B>>, Failure> {
        const LABEL: &str = "lookup weights";
        let LutOptions { form, activation, scale, .. } = self.options;
        let epilogue = Epilogue::new(backend, self.bias, options::activation(activation)?)?;
        let &[n, k] = self.weights.of(&[Dtype::I8])?.sizes() else {
            return Err(Failure::argument(format!("{} is no [n, k]", self.weights.shown())));
        };
        let form = match named("form", &Kind::ALL, form, Kind::number)? {
            Kind::Bits => {
                let product = OfBits(LossyLinear::new(backend, LABEL, &self.bits()?)?);
                return Ok(Box::new(LinearLayer { product, epilogue }));
            }
            Kind::Exact(form) => form,
        };
        if let Some(view) = self.scales.or(self.zeros) {
            let words = format!("{} goes with BITNET_LUT_BITS alone; pass NULL", view.what);
            return Err(Failure::argument(words));
        }
        // SAFETY: by who passed the weights.
        let ternaries = unsafe { self.weights.host::<i8>()? };
        let packed = PackedTl::from_ternaries(form, ternaries, k, &[(n, scale)]).map_err(cannot)?;
        let product = OfTl(LutLinear::new(backend, LABEL, &packed)?);
        Ok(Box::new(LinearLayer { product, epilogue }))
    }
}

/// Packs the weights of a linear layer by lookup and puts them on the device.
///
/// # Safety
/// An open backend; `weights`, and `scales`, `zeros` and `bias` unless they are null, are `bitnet_tensor`s in host memory,
/// `options` is null or begins with its size, `out` is null or can hold a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_lut_linear_new(
    backend: *const Device,
    weights: *const Tensor,
    scales: *const Tensor,
    zeros: *const Tensor,
    bias: *const Tensor,
    options: *const LutOptions,
    out: *mut *mut Layer,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let (place, out) = unsafe { begin(backend, out)? };
        // SAFETY: by the caller.
        let (weights, options) =
            unsafe { (View::new("weights", weights)?, LutOptions::given(options)?) };
        // SAFETY: by the caller.
        let (scales, zeros) =
            unsafe { (View::given("scales", scales)?, View::given("zeros", zeros)?) };
        // SAFETY: by the caller.
        let bias = unsafe { bias_of(bias, weights.sizes()[0])? };
        make(place, out, New { weights, scales, zeros, bias, options })
    })
}
