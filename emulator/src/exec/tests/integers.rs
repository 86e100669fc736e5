//! Integers of 16, 32 and 64 bits, fields, bytes and predicates.

use super::{agrees, gives, words};

const WORDS: [u64; 10] =
    [0, 1, 2, 7, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_fffe, 0xffff_ffff, 0x1234_5678];
const HALVES: [u64; 8] = [0, 1, 2, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff];
const DOUBLES: [u64; 8] = [0, 1, 3, u32::MAX as u64, 1 << 32, i64::MAX as u64, 1 << 63, u64::MAX];
const ZERO: [u64; 1] = [0];

/// On words, computed with more bits.
fn word(body: &str, expected: impl Fn(i128, i128, i128) -> i128) {
    agrees(body, "%r4", [&WORDS, &WORDS, &WORDS], |a, b, c| {
        u64::from(expected(a.into(), b.into(), c.into()) as u32)
    });
}

/// As [`word`], with signs.
fn signed(body: &str, expected: impl Fn(i128, i128, i128) -> i128) {
    let of = |x: i128| i128::from(x as u32 as i32);
    word(body, |a, b, c| expected(of(a), of(b), of(c)));
}

#[test]
fn words_wrap() {
    word("add.s32 %r4, %r1, %r2;", |a, b, _| a + b);
    word("add.u32 %r4, %r1, %r2;", |a, b, _| a + b);
    word("sub.s32 %r4, %r1, %r2;", |a, b, _| a - b);
    word("mul.lo.s32 %r4, %r1, %r2;", |a, b, _| a * b);
    word("mad.lo.s32 %r4, %r1, %r2, %r3;", |a, b, c| a * b + c);
    word("mul.hi.u32 %r4, %r1, %r2;", |a, b, _| (a * b) >> 32);
    word("neg.s32 %r4, %r1;", |a, _, _| -a);
    word("and.b32 %r4, %r1, %r2;", |a, b, _| a & b);
    word("or.b32 %r4, %r1, %r2;", |a, b, _| a | b);
    word("xor.b32 %r4, %r1, %r2;", |a, b, _| a ^ b);
    word("not.b32 %r4, %r1;", |a, _, _| !a);
    word("min.u32 %r4, %r1, %r2;", |a, b, _| a.min(b));
    word("max.u32 %r4, %r1, %r2;", |a, b, _| a.max(b));
    signed("min.s32 %r4, %r1, %r2;", |a, b, _| a.min(b));
    signed("max.s32 %r4, %r1, %r2;", |a, b, _| a.max(b));
    word("add.s32 %r4, %r1, -3;", |a, _, _| a - 3);
}

#[test]
fn words_are_divided_by_variables() {
    let by = [1, 2, 3, 10, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];
    agrees("div.u32 %r4, %r1, %r2;", "%r4", [&WORDS, &by, &ZERO], |a, b, _| a / b);
    agrees("rem.u32 %r4, %r1, %r2;", "%r4", [&WORDS, &by, &ZERO], |a, b, _| a % b);
    gives("div.u32 %r4, %r1, %r2;", "%r4", &[(&[7, 0], 0xffff_ffff)]);
    let by = [1, 3, u32::MAX as u64, 1 << 40, u64::MAX];
    agrees("div.u64 %rd4, %rd11, %rd12;", "%rd4", [&DOUBLES, &by, &ZERO], |a, b, _| a / b);
}

#[test]
fn shifts_go_past_the_width() {
    let counts = [0, 1, 15, 16, 31, 32, 33, 63, 64, 65, 255, 0xffff_ffff];
    let at = |value: u128, count: u64| if count > 127 { 0 } else { value << count };
    let down = |value: i128, count: u64| value >> count.min(127);
    agrees("shl.b32 %r4, %r1, %r2;", "%r4", [&WORDS, &counts, &ZERO], |a, n, _| {
        u64::from(at(a.into(), n) as u32)
    });
    agrees("shr.u32 %r4, %r1, %r2;", "%r4", [&WORDS, &counts, &ZERO], |a, n, _| {
        u64::from(down(a.into(), n) as u32)
    });
    agrees("shr.s32 %r4, %r1, %r2;", "%r4", [&WORDS, &counts, &ZERO], |a, n, _| {
        u64::from(down((a as i32).into(), n) as u32)
    });
    agrees("shl.b64 %rd4, %rd11, %r2;", "%rd4", [&DOUBLES, &counts, &ZERO], |a, n, _| {
        at(a.into(), n) as u64
    });
    agrees("shr.u64 %rd4, %rd11, %r2;", "%rd4", [&DOUBLES, &counts, &ZERO], |a, n, _| {
        down(a.into(), n) as u64
    });
    agrees("shr.s64 %rd4, %rd11, %r2;", "%rd4", [&DOUBLES, &counts, &ZERO], |a, n, _| {
        down((a as i64).into(), n) as u64
    });
    agrees("shl.b16 %rs4, %rs1, %r2;", "%rs4", [&HALVES, &counts, &ZERO], |a, n, _| {
        u64::from(at(a.into(), n) as u16)
    });
    agrees("shr.u16 %rs4, %rs1, %r2;", "%rs4", [&HALVES, &counts, &ZERO], |a, n, _| {
        u64::from(down(a.into(), n) as u16)
    });
}

/// The loop of the PTX manual, on `bits` bits.
fn field(a: u64, from: u64, len: u64, bits: u64, signed: bool) -> u64 {
    let (from, len, top) = (from & 0xff, len & 0xff, bits - 1);
    let fill = signed && len > 0 && a >> (from + len - 1).min(top) & 1 != 0;
    (0..bits).fold(0, |d, i| {
        let bit = if i < len && from + i <= top { a >> (from + i) & 1 } else { u64::from(fill) };
        d | bit << i
    })
}

#[test]
fn fields_may_be_empty_and_may_go_past_the_end() {
    let places = [0, 1, 5, 30, 31, 32, 40, 63, 64, 200, 255, 256, 257];
    let lengths = [0, 1, 2, 8, 31, 32, 33, 63, 64, 65, 255, 256];
    agrees("bfe.u32 %r4, %r1, %r2, %r3;", "%r4", [&WORDS, &places, &lengths], |a, b, c| {
        field(a, b, c, 32, false)
    });
    agrees("bfe.s32 %r4, %r1, %r2, %r3;", "%r4", [&WORDS, &places, &lengths], |a, b, c| {
        field(a, b, c, 32, true)
    });
    agrees("bfe.u64 %rd4, %rd11, %r2, %r3;", "%rd4", [&DOUBLES, &places, &lengths], |a, b, c| {
        field(a, b, c, 64, false)
    });
}

#[test]
fn bits_are_counted() {
    let table: &[(&[u64], u64)] =
        &[(&[0], 0), (&[1], 1), (&[0xffff_ffff], 32), (&[0x8000_0100], 2)];
    gives("popc.b32 %r4, %r1;", "%r4", table);
    gives("clz.b32 %r4, %r1;", "%r4", &[(&[0], 32), (&[1], 31), (&[0x8000_0000], 0)]);
    let table: &[(&[u64], u64)] = &[(&[0], 0xffff_ffff), (&[1], 31), (&[0x8000_0000], 0)];
    gives("bfind.shiftamt.u32 %r4, %r1;", "%r4", table);
}

#[test]
fn two_registers_are_shifted_as_one() {
    let cases = [
        (&[0x8765_4321, 0x1234_5678, 0], [0x1234_5678, 0x8765_4321]),
        (&[0x8765_4321, 0x1234_5678, 4], [0x2345_6788, 0x8876_5432]),
        (&[0x8765_4321, 0x1234_5678, 36], [0x2345_6788, 0x8876_5432]),
        (&[0x8000_0001, 0x8000_0001, 31], [0xc000_0000, 0x0000_0003]),
    ];
    gives(
        "shf.l.wrap.b32 %r4, %r1, %r2, %r3;",
        "%r4",
        &cases.map(|(from, [left, _])| (&from[..], left)),
    );
    gives(
        "shf.r.wrap.b32 %r4, %r1, %r2, %r3;",
        "%r4",
        &cases.map(|(from, [_, right])| (&from[..], right)),
    );
}

#[test]
fn bytes_are_picked_and_signs_repeated() {
    gives(
        "prmt.b32 %r4, %r1, %r2, %r3;",
        "%r4",
        &[
            (&[0x3322_1100, 0x7766_5544, 0x3210], 0x3322_1100),
            (&[0x3322_1100, 0x7766_5544, 0x7654], 0x7766_5544),
            (&[0x3322_1100, 0x7766_5544, 0x0426], 0x0044_2266),
            (&[0x0080_7fff, 0x0100_0080, 0x89a8], 0xff00_ffff),
            (&[0x0080_7fff, 0x0100_0080, 0xcdef], 0xff00_0000),
            (&[0x0080_7fff, 0x0100_0080, 0xffff_3210], 0x0080_7fff),
        ],
    );
}

#[test]
fn products_of_four_bytes_have_the_signs_of_the_name() {
    let bytes = |x: u64| [x, x >> 8, x >> 16, x >> 24].map(|x| x as u8);
    for (name, left_signed) in [("s32", true), ("u32", false)] {
        let values = [0, 0x0102_0304, 0x80ff_7f01, 0xffff_ffff, 0x8080_8080];
        let sums = [0, 5, 0x7fff_ffff, 0xffff_ffff];
        let body = format!("dp4a.{name}.s32 %r4, %r1, %r2, %r3;");
        agrees(&body, "%r4", [&values, &values, &sums], |a, b, c| {
            let left = |x: u8| if left_signed { i64::from(x as i8) } else { x.into() };
            let pairs = bytes(a).into_iter().zip(bytes(b));
            let sum: i64 = pairs.map(|(a, b)| left(a) * i64::from(b as i8)).sum();
            u64::from((sum + c as i64) as u32)
        });
    }
}

#[test]
fn halves_wrap_at_16_bits() {
    let all = [&HALVES[..], &HALVES[..], &HALVES[..]];
    let half = |body: &str, expected: fn(i64, i64, i64) -> i64| {
        agrees(body, "%rs4", all, |a, b, c| {
            u64::from(expected(a as i64, b as i64, c as i64) as u16)
        });
    };
    half("add.s16 %rs4, %rs1, %rs2;", |a, b, _| a + b);
    half("sub.s16 %rs4, %rs1, %rs2;", |a, b, _| a - b);
    half("mul.lo.s16 %rs4, %rs1, %rs2;", |a, b, _| a * b);
    half("mul.hi.u16 %rs4, %rs1, %rs2;", |a, b, _| (a * b) >> 16);
    half("mul.hi.u16 %rs4, %rs1, -21845;", |a, _, _| (a * 0xaaab) >> 16);
    half("mad.lo.s16 %rs4, %rs1, %rs2, %rs3;", |a, b, c| a * b + c);
    half("neg.s16 %rs4, %rs1;", |a, _, _| -a);
    half("not.b16 %rs4, %rs1;", |a, _, _| !a);
    half("and.b16 %rs4, %rs1, %rs2;", |a, b, _| a & b);
    half("or.b16 %rs4, %rs1, -2;", |a, _, _| a | 0xfffe);
    half("xor.b16 %rs4, %rs1, %rs2;", |a, b, _| a ^ b);
    half("min.u16 %rs4, %rs1, %rs2;", |a, b, _| a.min(b));
    half("mov.b16 %rs4, -1;", |_, _, _| -1);
    half("mov.b16 %rs4, %rs2;", |_, b, _| b);
    agrees("div.u16 %rs4, %rs1, %rs2;", "%rs4", [&HALVES, &HALVES[1..], &ZERO], |a, b, _| a / b);
    agrees("mul.wide.u16 %r4, %rs1, %rs2;", "%r4", [&HALVES, &HALVES, &ZERO], |a, b, _| a * b);
    agrees(
        "setp.eq.b16 %p1, %rs1, -1; selp.b16 %rs4, -2, %rs2, %p1;",
        "%rs4",
        [&HALVES, &HALVES, &ZERO],
        |a, b, _| if a == 0xffff { 0xfffe } else { b },
    );
}

#[test]
fn doubles_wrap_at_64_bits() {
    let all = [&DOUBLES[..], &DOUBLES[..], &DOUBLES[..]];
    let double = |body: &str, expected: fn(u64, u64, u64) -> u64| {
        agrees(body, "%rd4", all, expected);
    };
    double("add.s64 %rd4, %rd11, %rd12;", |a, b, _| a.wrapping_add(b));
    double("sub.s64 %rd4, %rd11, %rd12;", |a, b, _| a.wrapping_sub(b));
    double("mul.lo.s64 %rd4, %rd11, %rd12;", |a, b, _| a.wrapping_mul(b));
    double("neg.s64 %rd4, %rd11;", |a, _, _| a.wrapping_neg());
    double("mul.hi.u64 %rd4, %rd11, %rd12;", |a, b, _| {
        ((u128::from(a) * u128::from(b)) >> 64) as u64
    });
    double("mad.lo.s64 %rd4, %rd11, %rd12, %rd13;", |a, b, c| a.wrapping_mul(b).wrapping_add(c));
    double("and.b64 %rd4, %rd11, %rd12;", |a, b, _| a & b);
    double("or.b64 %rd4, %rd11, %rd12;", |a, b, _| a | b);
    double("xor.b64 %rd4, %rd11, %rd12;", |a, b, _| a ^ b);
    double("not.b64 %rd4, %rd11;", |a, _, _| !a);
    double("min.u64 %rd4, %rd11, %rd12;", |a, b, _| a.min(b));
    double("max.u64 %rd4, %rd11, %rd12;", |a, b, _| a.max(b));
    double("mov.u64 %rd4, -1;", |_, _, _| u64::MAX);
    agrees("mul.wide.s32 %rd4, %r1, %r2;", "%rd4", [&WORDS, &WORDS, &ZERO], |a, b, _| {
        (i64::from(a as i32) * i64::from(b as i32)) as u64
    });
    agrees("mul.wide.u32 %rd4, %r1, %r2;", "%rd4", [&WORDS, &WORDS, &ZERO], |a, b, _| a * b);
}

#[test]
fn registers_are_split_and_joined() {
    let wide = [0x0123_4567_89ab_cdef, u64::MAX, 0];
    let one = [&wide[..], &ZERO, &ZERO];
    agrees("mov.b64 {%r4, %r5}, %rd11;", "%r4", one, |a, _, _| u64::from(a as u32));
    agrees("mov.b64 {%r4, %r5}, %rd11;", "%r5", one, |a, _, _| a >> 32);
    agrees("mov.b64 {_, %r5}, %rd11;", "%r5", one, |a, _, _| a >> 32);
    agrees("mov.b64 {%r5, _}, %rd11;", "%r5", one, |a, _, _| u64::from(a as u32));
    agrees("mov.b32 {%rs4, _}, %r1;", "%rs4", one, |a, _, _| a & 0xffff);
    agrees("mov.b32 {_, %rs4}, %r1;", "%rs4", one, |a, _, _| a >> 16 & 0xffff);
    agrees("mov.b64 %rd4, {%r1, %r2};", "%rd4", [&WORDS, &WORDS, &ZERO], |a, b, _| b << 32 | a);
    agrees("mov.b64 %rd4, {%r1, 5};", "%rd4", [&WORDS, &ZERO, &ZERO], |a, _, _| 5 << 32 | a);
    agrees("mov.b32 %r4, {%rs1, %rs2};", "%r4", [&HALVES, &HALVES, &ZERO], |a, b, _| b << 16 | a);
    // The source may be one of the destinations.
    agrees("mov.b64 {%r1, %r2}, %rd11; mov.b64 %rd11, {%r2, %r1};", "%rd11", one, |a, _, _| {
        a.rotate_left(32)
    });
}

#[test]
fn integers_are_compared() {
    type How = (&'static str, fn(i128, i128) -> bool);
    let hows: [How; 6] = [
        ("eq", |a, b| a == b),
        ("ne", |a, b| a != b),
        ("lt", |a, b| a < b),
        ("le", |a, b| a <= b),
        ("gt", |a, b| a > b),
        ("ge", |a, b| a >= b),
    ];
    for (how, holds) in hows {
        let check = |kind: &str, registers: &str, values: &[u64], of: fn(u64) -> i128| {
            let body = format!("setp.{how}.{kind} %p1, {registers};");
            agrees(&body, "%p1", [values, values, &ZERO], |a, b, _| u64::from(holds(of(a), of(b))));
        };
        check("u32", "%r1, %r2", &WORDS, |x| x.into());
        check("s32", "%r1, %r2", &WORDS, |x| (x as i32).into());
        check("u64", "%rd11, %rd12", &DOUBLES, |x| x.into());
        check("s64", "%rd11, %rd12", &DOUBLES, |x| (x as i64).into());
        check("u16", "%rs1, %rs2", &HALVES, |x| x.into());
    }
}

#[test]
fn predicates_are_combined() {
    for (name, right) in [("and", 0b1000), ("or", 0b1110), ("xor", 0b0110)] {
        let body =
            format!("setp.ne.u32 %p1, %r1, 0; setp.ne.u32 %p2, %r2, 0; {name}.pred %p3, %p1, %p2;");
        agrees(&body, "%p3", [&[0, 1], &[0, 1], &ZERO], |a, b, _| right >> (2 * a + b) & 1);
    }
    gives("setp.ne.u32 %p1, %r1, 0; not.pred %p2, %p1;", "%p2", &[(&[0], 1), (&[1], 0)]);
    gives("mov.pred %p1, 1; mov.pred %p2, %p1;", "%p2", &[(&[0], 1)]);
    let select = "setp.ne.u32 %p1, %r1, 0; selp.b64 %rd4, %rd12, -1, %p1;";
    gives(select, "%rd4", &[(&[1, 1 << 40], 1 << 40), (&[0, 1 << 40], u64::MAX)]);
    let select = "setp.ne.u32 %p1, %r1, 0; selp.b32 %r4, %r2, -1, %p1;";
    gives(select, "%r4", &[(&[1, 9], 9), (&[0, 9], 0xffff_ffff)]);
}

#[test]
fn a_guarded_instruction_leaves_other_lanes_alone() {
    let body = "mov.u32 %r1, 7; and.b32 %r2, %r0, 1; setp.ne.u32 %p1, %r2, 0;
        @%p1 add.s32 %r1, %r1, %r0; @!%p1 mov.u32 %r1, 100;";
    let expected: Vec<u32> = (0..40).map(|i| if i % 2 == 1 { 7 + i } else { 100 }).collect();
    assert_eq!(words(40, body), expected);
}
