//! Conversions.

use super::{agrees, gives};

const ZERO: [u64; 1] = [0];

#[test]
fn integers_are_widened_and_cut() {
    let all =
        [&[0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0x8000_0080, u64::MAX]];
    let all = [&all[0][..], &ZERO, &ZERO];
    agrees("cvt.u64.u32 %rd4, %r1;", "%rd4", all, |a, _, _| a as u32 as u64);
    agrees("cvt.s64.s32 %rd4, %r1;", "%rd4", all, |a, _, _| a as u32 as i32 as i64 as u64);
    agrees("cvt.u64.u32 %rd4, %rd11;", "%rd4", all, |a, _, _| a as u32 as u64);
    agrees("cvt.s64.s32 %rd4, %rd11;", "%rd4", all, |a, _, _| a as u32 as i32 as i64 as u64);
    agrees("cvt.u64.u16 %rd4, %rs1;", "%rd4", all, |a, _, _| a as u16 as u64);
    agrees("cvt.u32.u64 %r4, %rd11;", "%r4", all, |a, _, _| a as u32 as u64);
    agrees("cvt.u16.u64 %rs4, %rd11;", "%rs4", all, |a, _, _| a as u16 as u64);
    agrees("cvt.u16.u32 %rs4, %r1;", "%rs4", all, |a, _, _| a as u16 as u64);
    agrees("cvt.u32.u16 %r4, %rs1;", "%r4", all, |a, _, _| a as u16 as u64);
    agrees("cvt.s32.s8 %r4, %r1;", "%r4", all, |a, _, _| a as u8 as i8 as i32 as u32 as u64);
}

#[test]
fn integers_become_the_nearest_floats() {
    let words: &[(&[u64], u64)] = &[
        (&[0], 0),
        (&[0x0100_0001], 0x4b80_0000),
        (&[0x0100_0003], 0x4b80_0002),
        (&[0x7fff_ffff], 0x4f00_0000),
    ];
    gives("cvt.rn.f32.s32 %r4, %r1;", "%r4", words);
    gives("cvt.rn.f32.u32 %r4, %r1;", "%r4", words);
    gives("cvt.rn.f32.s32 %r4, %r1;", "%r4", &[(&[0xffff_ffff], 0xbf80_0000)]);
    gives("cvt.rn.f32.u32 %r4, %r1;", "%r4", &[(&[0xffff_ffff], 0x4f80_0000)]);
    let all = &[(&[0xffff][..], 0x477f_ff00), (&[0x8001], 0x4700_0100), (&[0], 0)];
    gives("cvt.rn.f32.u16 %r4, %rs1;", "%r4", all);
    // 2^40 + 2^16 is halfway; one more is not, though it is in f64 too.
    let far: &[(&[u64], u64)] = &[
        (&[(1 << 40) + (1 << 16)], 0x5380_0000),
        (&[(1 << 40) + (1 << 16) + 1], 0x5380_0001),
        (&[(1 << 62) + (1 << 38) + 1], 0x5e80_0001),
    ];
    gives("cvt.rn.f32.u64 %r4, %rd11;", "%r4", far);
    gives("cvt.rn.f32.s64 %r4, %rd11;", "%r4", far);
    gives("cvt.rn.f32.u64 %r4, %rd11;", "%r4", &[(&[u64::MAX], 0x5f80_0000)]);
    gives("cvt.rn.f32.s64 %r4, %rd11;", "%r4", &[(&[u64::MAX], 0xbf80_0000)]);
}

#[test]
fn floats_become_integers_by_cutting_and_saturating() {
    gives(
        "cvt.rzi.u32.f32 %r4, %r1;",
        "%r4",
        &[
            (&[0x3fff_ffff], 1),
            (&[0x4b80_0001], 0x0100_0002),
            (&[0x4f7f_ffff], 0xffff_ff00),
            (&[0x4f80_0000], 0xffff_ffff),
            (&[0x7f80_0000], 0xffff_ffff),
            (&[0xbf80_0000], 0),
            (&[0xbf00_0000], 0),
            (&[0xff80_0000], 0),
            (&[0x7fc0_0000], 0),
            (&[1], 0),
        ],
    );
    gives(
        "cvt.rzi.u64.f32 %rd4, %r1;",
        "%rd4",
        &[
            (&[0x3fff_ffff], 1),
            (&[0x5300_0001], 0x80_0001_0000),
            (&[0x5f7f_ffff], 0xffff_ff00_0000_0000),
            (&[0x5f80_0000], u64::MAX),
            (&[0x7f80_0000], u64::MAX),
            (&[0xbf80_0000], 0),
            (&[0xff80_0000], 0),
            (&[0x7fc0_0000], 1 << 63),
            (&[1], 0),
        ],
    );
}

#[test]
fn f16_and_back() {
    gives(
        "cvt.rn.f16.f32 %rs4, %r1;",
        "%rs4",
        &[
            (&[0x3f80_0000], 0x3c00),
            // Halfway down to even, and up to even; just above halfway.
            (&[0x3f80_1000], 0x3c00),
            (&[0x3f80_3000], 0x3c02),
            (&[0x3f80_1001], 0x3c01),
            // 65504 is the greatest; 65520 is halfway to what there is not.
            (&[0x477f_e000], 0x7bff),
            (&[0x477f_efff], 0x7bff),
            (&[0x477f_f000], 0x7c00),
            (&[0xff80_0000], 0xfc00),
            // The least subnormal is 2^-24; half of it goes to zero.
            (&[0x3380_0000], 0x0001),
            (&[0x3300_0000], 0x0000),
            (&[0x3300_0001], 0x0001),
            (&[0x8000_0001], 0x8000),
            (&[0xffc0_0000], 0x7fff),
        ],
    );
    gives(
        "cvt.f32.f16 %r4, %rs1;",
        "%r4",
        &[
            (&[0x3c01], 0x3f80_2000),
            (&[0x0001], 0x3380_0000),
            (&[0x83ff], 0xb87f_c000),
            (&[0x8000], 0x8000_0000),
            (&[0x7c00], 0x7f80_0000),
            (&[0x7e01], 0x7fff_ffff),
        ],
    );
}

#[test]
fn pairs_have_their_first_operand_above() {
    gives(
        "cvt.rn.bf16x2.f32 %r4, %r1, %r2;",
        "%r4",
        &[
            (&[0x3f80_0000, 0xc000_0000], 0x3f80_c000),
            (&[0x3f80_8000, 0x3f81_8000], 0x3f80_3f82),
            (&[0x3f80_8001, 0x7f7f_ffff], 0x3f81_7f80),
            (&[0x7f80_0001, 0xff80_0000], 0x7fff_ff80),
            // Subnormals stay.
            (&[0x0001_0000, 0x8000_8001], 0x0001_8001),
        ],
    );
    gives(
        "cvt.rn.f16x2.f32 %r4, %r1, %r2;",
        "%r4",
        &[(&[0x3f80_0000, 0x477f_f000], 0x3c00_7c00), (&[0xffc0_0000, 0x3f80_3000], 0x7fff_3c02)],
    );
}

#[test]
fn tf32_rounds_ties_away_from_zero() {
    gives(
        "cvt.rna.tf32.f32 %r4, %r1;",
        "%r4",
        &[
            (&[0x3f80_0fff], 0x3f80_0000),
            (&[0x3f80_1000], 0x3f80_2000),
            (&[0xbf80_1000], 0xbf80_2000),
            (&[0x3f80_3000], 0x3f80_4000),
            (&[0x7f7f_f000], 0x7f80_0000),
            (&[0xff80_0000], 0xff80_0000),
            (&[0x7f80_0001], 0x7fff_ffff),
            (&[0x0000_1000], 0x0000_2000),
        ],
    );
}
