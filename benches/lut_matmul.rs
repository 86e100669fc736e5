//! [`contract::lut_matmul`] on a GPU beside `w2a8_gemv`, in turns on the same weights: what lookup
//! tables cost where multiplying is cheap.
//!
//! `--variants` times every compiled kernel of the exact forms: what
//! `ops::lut_matmul::choose_index` is made from.

use std::process::ExitCode;
use std::rc::Rc;

use bitnet_benches::{Arm, Lookup, Weights, run};
use contract::lut_matmul::{Form, VARIANTS};

/// `(n, k)`: the layers of the 2B-4T model, and a large one.
const SHAPES: &[(usize, usize)] =
    &[(3840, 2560), (2560, 2560), (13_824, 2560), (2560, 6912), (8192, 8192)];

fn main() -> ExitCode {
    run("lut_matmul", |suite| {
        for &(n, k) in SHAPES {
            if !suite.options().wants(&format!("{n}x{k}")) {
                continue;
            }
            let weights = Rc::new(Weights::new(n, k)?);
            let mut arms = vec![Arm::Multiply];
            arms.extend(Form::ALL.map(|form| Arm::Exact(form, None)));
            arms.push(Arm::Lossy);
            if suite.options().variants {
                let all = VARIANTS.iter().enumerate();
                arms.extend(all.map(|(index, v)| Arm::Exact(v.form, Some(index))));
            }
            let cases: Vec<_> =
                arms.into_iter().map(|arm| Lookup { weights: weights.clone(), arm }).collect();
            let rows = suite.measure_variants(&cases)?;
            let cold_us = |row: &bitnet_benches::Row| row.cold.map_or(f64::NAN, |t| t.us.median);
            let yardstick = rows.first().map_or(f64::NAN, cold_us);
            for row in rows {
                row.set("of_w2a8_gemv", yardstick / cold_us(row));
            }
        }
        let note = "`of_w2a8_gemv` is the time of w2a8_gemv over that of the row, both cold";
        suite.report().notes.push(note.into());
        Ok(())
    })
}
