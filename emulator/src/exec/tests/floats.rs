//! Floats of 32 bits. Expectations are bits, or sums in `f64` where those are exact.

use super::{agrees, gives};

const NAN: u64 = 0x7fff_ffff;
const INF: u64 = 0x7f80_0000;
const NEG_INF: u64 = 0xff80_0000;
const ONE: u64 = 0x3f80_0000;
const NEG_ZERO: u64 = 0x8000_0000;
const MAX: u64 = 0x7f7f_ffff;
// The least subnormal, the greatest subnormal and the least normal number.
const TINY: u64 = 1;
const BELOW: u64 = 0x007f_ffff;
const NORMAL: u64 = 0x0080_0000;
const VALUES: [u64; 16] = [
    0,
    NEG_ZERO,
    TINY,
    0x8000_0001,
    BELOW,
    NORMAL,
    0x8080_0000,
    ONE,
    0xbf80_0000,
    0x3f80_0001,
    0x4b80_0001,
    MAX,
    INF,
    NEG_INF,
    0x7fc0_0000,
    0xff80_1234,
];
const ZERO: [u64; 1] = [0];

fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}

fn bits(x: f64) -> u64 {
    let x = x as f32;
    if x.is_nan() { NAN } else { x.to_bits().into() }
}

#[test]
fn sums_and_products_are_rounded_once_and_keep_subnormals() {
    let all = [&VALUES[..], &VALUES[..], &ZERO[..]];
    // 24-bit products and sums of numbers that are close enough are exact in 53 bits; those of others round to what
    // they round to with any more bits.
    agrees("add.rn.f32 %r4, %r1, %r2;", "%r4", all, |a, b, _| bits(f(a) as f64 + f(b) as f64));
    agrees("sub.rn.f32 %r4, %r1, %r2;", "%r4", all, |a, b, _| bits(f(a) as f64 - f(b) as f64));
    agrees("mul.rn.f32 %r4, %r1, %r2;", "%r4", all, |a, b, _| bits(f(a) as f64 * f(b) as f64));
    gives("add.f32 %r4, %r1, %r2;", "%r4", &[(&[TINY, TINY], 2), (&[BELOW, TINY], NORMAL)]);
    gives("mul.f32 %r4, %r1, %r2;", "%r4", &[(&[NORMAL, 0x3f00_0000], 0x0040_0000)]);
    // Ties to even.
    let halfway = 0x3380_0000;
    gives("add.f32 %r4, %r1, %r2;", "%r4", &[(&[ONE, halfway], ONE)]);
    gives("add.f32 %r4, %r1, %r2;", "%r4", &[(&[ONE + 1, halfway], ONE + 2)]);
    gives("sub.f32 %r4, %r1, %r2;", "%r4", &[(&[INF, INF], NAN), (&[ONE, ONE], 0)]);
}

#[test]
fn a_fused_product_is_rounded_once() {
    gives(
        "fma.rn.f32 %r4, %r1, %r2, %r3;",
        "%r4",
        &[
            // (1 + 2^-23)(1 - 2^-23) - 1 = -2^-46, which a rounded product loses.
            (&[ONE + 1, 0x3f7f_fffe, 0xbf80_0000], 0xa880_0000),
            (&[TINY, ONE, TINY], 2),
            (&[MAX, MAX, NEG_INF], NEG_INF),
            (&[INF, 0, ONE], NAN),
            (&[0, ONE, NEG_ZERO], 0),
            (&[NEG_ZERO, ONE, NEG_ZERO], NEG_ZERO),
        ],
    );
}

#[test]
fn quotients_and_roots_are_rounded_once() {
    let all = [&VALUES[..], &VALUES[..], &ZERO[..]];
    // Twice 24 bits and two more are enough to round a quotient or root twice.
    agrees("div.rn.f32 %r4, %r1, %r2;", "%r4", all, |a, b, _| bits(f(a) as f64 / f(b) as f64));
    agrees("rcp.rn.f32 %r4, %r1;", "%r4", all, |a, _, _| bits(1.0 / f(a) as f64));
    agrees("sqrt.rn.f32 %r4, %r1;", "%r4", all, |a, _, _| bits((f(a) as f64).sqrt()));
    gives("div.rn.f32 %r4, %r1, %r2;", "%r4", &[(&[ONE, 0], INF), (&[ONE, NEG_ZERO], NEG_INF)]);
    gives("div.rn.f32 %r4, %r1, %r2;", "%r4", &[(&[TINY, 0x4000_0000], 0), (&[3, 0x4000_0000], 2)]);
    gives("sqrt.rn.f32 %r4, %r1;", "%r4", &[(&[NEG_ZERO], NEG_ZERO), (&[0xbf80_0000], NAN)]);
    gives("sqrt.rn.f32 %r4, %r1;", "%r4", &[(&[TINY], 0x1a35_04f3), (&[0x4080_0000], 0x4000_0000)]);
}

#[test]
fn signs_are_bits() {
    agrees("abs.f32 %r4, %r1;", "%r4", [&VALUES, &ZERO, &ZERO], |a, _, _| a & 0x7fff_ffff);
    agrees("neg.f32 %r4, %r1;", "%r4", [&VALUES, &ZERO, &ZERO], |a, _, _| a ^ 0x8000_0000);
}

#[test]
fn the_lesser_and_the_greater() {
    let quiet = 0x7fc0_0000;
    let (min, max) = ("min.f32 %r4, %r1, %r2;", "max.f32 %r4, %r1, %r2;");
    let table: [(&[u64], u64, u64, u64); 9] = [
        (&[ONE, 0x4000_0000], ONE, 0x4000_0000, 0x4000_0000),
        (&[0, NEG_ZERO], NEG_ZERO, 0, 0),
        (&[NEG_ZERO, 0], NEG_ZERO, 0, 0),
        (&[quiet, ONE], ONE, ONE, NAN),
        (&[ONE, quiet], ONE, ONE, NAN),
        (&[quiet, 0xffc0_0001], NAN, NAN, NAN),
        (&[NEG_INF, INF], NEG_INF, INF, INF),
        (&[TINY, NEG_ZERO], NEG_ZERO, TINY, TINY),
        (&[0xbf80_0000, 0xc000_0000], 0xc000_0000, 0xbf80_0000, 0xbf80_0000),
    ];
    for (operands, least, greatest, or_nan) in table {
        gives(min, "%r4", &[(operands, least)]);
        gives(max, "%r4", &[(operands, greatest)]);
        gives("max.NaN.f32 %r4, %r1, %r2;", "%r4", &[(operands, or_nan)]);
    }
}

#[test]
fn pairs_have_their_greater_halves_or_nan() {
    gives(
        "max.NaN.bf16x2 %r4, %r1, %r2;",
        "%r4",
        &[
            (&[0x3f80_c000, 0x4000_bf80], 0x4000_bf80),
            (&[0x0000_8000, 0x8000_0000], 0),
            (&[0x7fc1_3f80, 0x3f80_ff81], 0x7fff_7fff),
        ],
    );
    gives(
        "max.NaN.f16x2 %r4, %r1, %r2;",
        "%r4",
        &[
            (&[0x3c00_c000, 0x4000_bc00], 0x4000_bc00),
            (&[0x0001_8000, 0x0000_0000], 0x0001_0000),
            (&[0x7e00_7c00, 0x3c00_fc01], 0x7fff_7fff),
        ],
    );
}

#[test]
fn approximations_treat_subnormals_as_zeros() {
    let rcp: &[(&[u64], u64)] = &[
        (&[0x4000_0000], 0x3f00_0000),
        (&[BELOW], INF),
        (&[0x8000_0001], NEG_INF),
        (&[NEG_INF], NEG_ZERO),
        (&[MAX], 0),
        (&[0x7fc0_0000], NAN),
    ];
    gives("rcp.approx.ftz.f32 %r4, %r1;", "%r4", rcp);
    let rsqrt: &[(&[u64], u64)] = &[
        (&[0x4080_0000], 0x3f00_0000),
        (&[BELOW], INF),
        (&[NEG_ZERO], NEG_INF),
        (&[INF], 0),
        (&[0xbf80_0000], NAN),
    ];
    gives("rsqrt.approx.ftz.f32 %r4, %r1;", "%r4", rsqrt);
    let ex2: &[(&[u64], u64)] = &[
        (&[0x4040_0000], 0x4100_0000),
        (&[TINY], ONE),
        (&[NEG_INF], 0),
        (&[INF], INF),
        (&[0x4300_0000], INF),
        // 2^-126, and 2^-127, which is subnormal.
        (&[0xc2fc_0000], NORMAL),
        (&[0xc2fe_0000], 0),
    ];
    gives("ex2.approx.ftz.f32 %r4, %r1;", "%r4", ex2);
}

#[test]
fn comparisons_know_nan() {
    // Less, equal, greater, unordered.
    for (how, holds) in [
        ("eq", [false, true, false, false]),
        ("ne", [true, false, true, false]),
        ("lt", [true, false, false, false]),
        ("le", [true, true, false, false]),
        ("gt", [false, false, true, false]),
        ("ge", [false, true, true, false]),
        ("equ", [false, true, false, true]),
        ("neu", [true, false, true, true]),
        ("ltu", [true, false, false, true]),
        ("leu", [true, true, false, true]),
        ("gtu", [false, false, true, true]),
        ("geu", [false, true, true, true]),
        ("num", [true, true, true, false]),
        ("nan", [false, false, false, true]),
    ] {
        let body = format!("setp.{how}.f32 %p1, %r1, %r2;");
        agrees(&body, "%p1", [&VALUES, &VALUES, &ZERO], |a, b, _| {
            let which = match f(a).partial_cmp(&f(b)) {
                Some(std::cmp::Ordering::Less) => 0,
                Some(std::cmp::Ordering::Equal) => 1,
                Some(std::cmp::Ordering::Greater) => 2,
                None => 3,
            };
            u64::from(holds[which])
        });
    }
}

#[test]
fn pairs_are_multiplied_and_added_with_one_rounding() {
    // 3 * 5 + 1, 256 * 2^-7 - 2; 1 + 2^-8 is half of a step, and the third number says to which side it goes.
    let cases: [(&[u64], u64); 5] = [
        (&[0x4040_4380, 0x40a0_3c00, 0x3f80_c000], 0x4180_0000),
        (&[0x3f80_3f80, 0x3b80_3b80, 0x3f80_3f81], 0x3f80_3f82),
        (&[0x3f81_bf81, 0x3f81_3f81, 0x3380_b380], 0x3f82_bf82),
        (&[0x7f80_7f00, 0x0000_4080, 0x3f80_0000], 0x7fff_7f80),
        (&[0xff80_7f80, 0x3f80_3f80, 0x7f80_0000], 0x7fff_7f80),
    ];
    gives("fma.rn.bf16x2 %r4, %r1, %r2, %r3;", "%r4", &cases);
    gives(
        "fma.rn.relu.bf16x2 %r4, %r1, %r2, %r3;",
        "%r4",
        &[
            (&[0x3f80_bf80, 0x4000_4000, 0xc040_4040], 0x0000_3f80),
            (&[0x7fc1_8000, 0x3f80_3f80, 0x3f80_8000], 0x7fff_0000),
        ],
    );
}
