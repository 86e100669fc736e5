//! [`contract::w2a8_trits`] on a GPU, beside the GEMV on 2-bit weights in the same run: shapes of models and large ones.
//!
//! `--variants` times every compiled variant. `of_2bit` is the best cold time on 2-bit weights, over all variants, by
//! that of the row: above 1 the 1.6 bits win.

use std::process::ExitCode;
use std::rc::Rc;

use bitnet_benches::{Case, Linear, LinearTensors, bits, run};
use bitnet_gpu::ops::w2a8_gemv::W2a8Gemv;
use bitnet_gpu::ops::w2a8_trits::{W2a8Trits, choose_index, unpacked_len};
use bitnet_gpu::ops::{Backend, OpError, PackedLinear, WeightLayout};
use contract::{w2a8_gemv, w2a8_trits};

const SHAPES: &[(usize, usize)] = &[
    (3840, 2560),
    (2560, 2560),
    (13_824, 2560),
    (2560, 6912),
    (8192, 8192),
    (55_296, 5120),
    (16_384, 16_384),
    (8192, 28_672),
];

#[derive(Clone, Copy)]
enum Kernel {
    Bits2(usize),
    Trits(usize),
}

struct Gemv {
    linear: Rc<Linear>,
    kernel: Kernel,
}

struct Tensors<B: Backend> {
    linear: LinearTensors<B>,
    unpacked: B::Buf<u32>,
}

impl Case for Gemv {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        format!("{}x{}", self.linear.n, self.linear.k)
    }

    fn variant(&self) -> String {
        match self.kernel {
            Kernel::Bits2(index) => w2a8_gemv::VARIANTS[index].spec.symbol,
            Kernel::Trits(index) => w2a8_trits::VARIANTS[index].spec.symbol,
        }
        .trim_start_matches("w2a8_")
        .to_owned()
    }

    fn bytes(&self) -> u64 {
        let (n, k) = (self.linear.n, self.linear.k);
        let words = |layout: WeightLayout| 4 * n as u64 * layout.row_words(k) as u64;
        match self.kernel {
            Kernel::Bits2(_) => self.linear.bytes(),
            Kernel::Trits(_) => {
                self.linear.bytes() + words(WeightLayout::Trits) - words(WeightLayout::Bits2)
            }
        }
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let (n, k) = (self.linear.n, self.linear.k);
        let mut linear = self.linear.tensors(backend)?;
        if let Kernel::Trits(_) = self.kernel {
            let packed = self.linear.packed();
            let layout = WeightLayout::Trits;
            let mut w = PackedLinear::alloc_in(backend, "weights", k, packed.segments, layout)?;
            w.write_rows(backend, 0, &packed.words)?;
            linear.w = w;
        }
        Ok(Tensors { linear, unpacked: backend.alloc("unpacked", unpacked_len(1, n, k).max(1))? })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let LinearTensors { w, acts, y } = &mut t.linear;
        match self.kernel {
            Kernel::Bits2(index) => {
                backend.w2a8_gemv(W2a8Gemv { w, acts, y, variant: Some(index) })
            }
            Kernel::Trits(index) => {
                let (variant, unpacked) = (Some(index), &mut t.unpacked);
                backend.w2a8_trits(W2a8Trits { w, acts, y, m: 1, unpacked, variant })
            }
        }
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.linear.y)
    }
}

fn main() -> ExitCode {
    run("w2a8_trits", |suite| {
        for &(n, k) in SHAPES {
            if !suite.options().wants(&format!("{n}x{k}")) {
                continue;
            }
            let linear = Rc::new(Linear::new(1, n, k));
            let mut kernels: Vec<_> = (0..w2a8_gemv::VARIANTS.len()).map(Kernel::Bits2).collect();
            match suite.options().variants {
                true => kernels.extend((0..w2a8_trits::VARIANTS.len()).map(Kernel::Trits)),
                false => kernels.push(Kernel::Trits(choose_index(n, k))),
            }
            let cases: Vec<_> =
                kernels.iter().map(|&kernel| Gemv { linear: linear.clone(), kernel }).collect();
            let rows = suite.measure_variants(&cases)?;
            let cold_us = |row: &bitnet_benches::Row| row.cold.map_or(f64::NAN, |t| t.us.median);
            let two = rows.iter().zip(&kernels).filter(|(_, k)| matches!(k, Kernel::Bits2(_)));
            let two = two.map(|(row, _)| cold_us(row)).fold(f64::INFINITY, f64::min);
            for row in rows.iter_mut() {
                row.set("of_2bit", two / cold_us(row));
            }
        }
        Ok(())
    })
}
