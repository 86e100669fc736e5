//! Arithmetic of 32 lanes at once. Inactive lanes are computed and not kept, so nothing here may panic.

use half::{bf16, f16};

use crate::ptx::op::{Compare, K32, K64};

/// What every NaN result is.
const NAN: u32 = 0x7fff_ffff;

/// `f` of every lane.
#[inline(always)]
pub(super) fn all<T: Copy + Default>(f: impl Fn(usize) -> T) -> [T; 32] {
    let mut out = [T::default(); 32];
    for (i, out) in out.iter_mut().enumerate() {
        *out = f(i);
    }
    out
}

/// Sets the lanes of `mask`.
#[inline(always)]
pub(super) fn set<T: Copy>(d: &mut [T; 32], mask: u32, value: &[T; 32]) {
    if mask == !0 {
        *d = *value;
    } else {
        for (i, d) in d.iter_mut().enumerate() {
            *d = if mask >> i & 1 != 0 { value[i] } else { *d };
        }
    }
}

#[inline(always)]
fn f(bits: u32) -> f32 {
    f32::from_bits(bits)
}

#[inline(always)]
fn bits(value: f32) -> u32 {
    if value.is_nan() { NAN } else { value.to_bits() }
}

#[inline(always)]
fn unordered(a: u32, b: u32) -> bool {
    f(a).is_nan() || f(b).is_nan()
}

/// Subnormal numbers as zeros of the same sign.
#[inline(always)]
fn flush(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(value) } else { value }
}

#[inline(always)]
fn min(a: u32, b: u32) -> u32 {
    let (x, y) = (f(a), f(b));
    if x.is_nan() || y.is_nan() {
        return if !x.is_nan() { a } else { bits(y) };
    }
    if x == y {
        a | b
    } else if x < y {
        a
    } else {
        b
    }
}

#[inline(always)]
fn max(a: u32, b: u32) -> u32 {
    let (x, y) = (f(a), f(b));
    if x.is_nan() || y.is_nan() {
        return if !x.is_nan() { a } else { bits(y) };
    }
    if x == y {
        a & b
    } else if x > y {
        a
    } else {
        b
    }
}

/// `a * b + c` of bf16, rounded once.
fn fma_bf16(a: u16, b: u16, c: u16, relu: bool) -> u16 {
    let [a, b, c] = [a, b, c].map(|h| f(u32::from(h) << 16));
    let near = a.mul_add(b, c);
    if near.is_nan() {
        return 0x7fff;
    }
    if relu && (near < 0.0 || near.to_bits() == 1 << 31) {
        return 0;
    }
    // Rounded to odd, so that the second rounding sees what the first one left: the product is exact, and so are the sum's two parts.
    let (product, added) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + added;
    let part = sum - product;
    let left = (product - (sum - part)) + (added - part);
    let left = (sum - f64::from(near)) + left;
    let odd = if left == 0.0 || !near.is_finite() {
        near.to_bits()
    } else if near == 0.0 {
        u32::from(left < 0.0) << 31 | 1
    } else if (left < 0.0) == (near < 0.0) {
        near.to_bits() | 1
    } else {
        (near.to_bits() - 1) | 1
    };
    to_bf16(odd) as u16
}

fn fma_halves(a: u32, b: u32, c: u32, relu: bool) -> u32 {
    let of = |shift: u32| {
        u32::from(fma_bf16((a >> shift) as u16, (b >> shift) as u16, (c >> shift) as u16, relu))
    };
    of(0) | of(16) << 16
}

fn max_nan_half(a: u16, b: u16, value: impl Fn(u16) -> f32) -> u16 {
    let (x, y) = (value(a), value(b));
    if x.is_nan() || y.is_nan() {
        0x7fff
    } else if x == y {
        a & b
    } else if x > y {
        a
    } else {
        b
    }
}

fn halves(a: u32, b: u32, value: impl Fn(u16) -> f32) -> u32 {
    let low = max_nan_half(a as u16, b as u16, &value);
    let high = max_nan_half((a >> 16) as u16, (b >> 16) as u16, &value);
    u32::from(high) << 16 | u32::from(low)
}

fn to_half(a: u32) -> u32 {
    let value = f(a);
    if value.is_nan() { 0x7fff } else { u32::from(f16::from_f32_const(value).to_bits()) }
}

fn to_bf16(a: u32) -> u32 {
    let value = f(a);
    if value.is_nan() { 0x7fff } else { u32::from(bf16::from_f32(value).to_bits()) }
}

/// Two registers as one, `a` the lower half.
#[inline(always)]
fn both(a: u32, b: u32) -> u64 {
    u64::from(b) << 32 | u64::from(a)
}

#[inline(always)]
fn prmt(a: u32, b: u32, c: u32) -> u32 {
    let bytes = both(a, b);
    let mut out = 0;
    for i in 0..4 {
        let select = c >> (4 * i) & 0xf;
        let byte = (bytes >> (8 * (select & 7))) as u8;
        let byte = if select & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
        out |= u32::from(byte) << (8 * i);
    }
    out
}

#[inline(always)]
fn bfe_u(a: u32, b: u32, c: u32) -> u32 {
    let (at, len) = (b & 0xff, c & 0xff);
    let mask = if len > 31 { !0 } else { (1_u32 << len) - 1 };
    if at > 31 { 0 } else { a >> at & mask }
}

#[inline(always)]
fn bfe_s(a: u32, b: u32, c: u32) -> u32 {
    let (at, len) = (b & 0xff, c & 0xff);
    if len == 0 {
        return 0;
    }
    let (at, top) = (at.min(31), (at + len - 1).min(31));
    (((a << (31 - top)) as i32) >> (31 - top).wrapping_add(at).min(31)) as u32
}

#[inline(always)]
fn dot4(a: u32, b: u32, c: u32, signed: bool) -> u32 {
    let mut sum = c as i32;
    for i in 0..4 {
        let x = (a >> (8 * i)) as u8;
        let x = if signed { i32::from(x as i8) } else { i32::from(x) };
        sum = sum.wrapping_add(x * i32::from((b >> (8 * i)) as u8 as i8));
    }
    sum as u32
}

/// One operation on 32-bit lanes.
#[inline(always)]
pub(super) fn alu32(k: K32, narrow: bool, [a, b, c]: [&[u32; 32]; 3]) -> [u32; 32] {
    macro_rules! each {
        (|$x:ident| $e:expr) => {
            all(|i| {
                let $x = a[i];
                $e
            })
        };
        (|$x:ident, $y:ident| $e:expr) => {
            all(|i| {
                let ($x, $y) = (a[i], b[i]);
                $e
            })
        };
        (|$x:ident, $y:ident, $z:ident| $e:expr) => {
            all(|i| {
                let ($x, $y, $z) = (a[i], b[i], c[i]);
                $e
            })
        };
    }
    let mut out = match k {
        K32::Add => each!(|x, y| x.wrapping_add(y)),
        K32::Sub => each!(|x, y| x.wrapping_sub(y)),
        K32::Mul => each!(|x, y| x.wrapping_mul(y)),
        K32::Mad => each!(|x, y, z| x.wrapping_mul(y).wrapping_add(z)),
        K32::MulHiU => each!(|x, y| ((u64::from(x) * u64::from(y)) >> 32) as u32),
        K32::MulHiU16 => each!(|x, y| ((x & 0xffff) * (y & 0xffff)) >> 16),
        K32::Div => each!(|x, y| x.checked_div(y).unwrap_or(!0)),
        K32::Rem => each!(|x, y| x.checked_rem(y).unwrap_or(!0)),
        K32::And => each!(|x, y| x & y),
        K32::Or => each!(|x, y| x | y),
        K32::Xor => each!(|x, y| x ^ y),
        K32::Not => each!(|x| !x),
        K32::Neg => each!(|x| x.wrapping_neg()),
        K32::Shl => each!(|x, y| if y > 31 { 0 } else { x << y }),
        K32::ShrU => each!(|x, y| if y > 31 { 0 } else { x >> y }),
        K32::ShrS => each!(|x, y| ((x as i32) >> y.min(31)) as u32),
        K32::MinU => each!(|x, y| x.min(y)),
        K32::MaxU => each!(|x, y| x.max(y)),
        K32::MinS => each!(|x, y| (x as i32).min(y as i32) as u32),
        K32::MaxS => each!(|x, y| (x as i32).max(y as i32) as u32),
        K32::Popc => each!(|x| x.count_ones()),
        K32::Clz => each!(|x| x.leading_zeros()),
        K32::BfindShift => each!(|x| if x == 0 { !0 } else { x.leading_zeros() }),
        K32::BfeU => each!(|x, y, z| bfe_u(x, y, z)),
        K32::BfeS => each!(|x, y, z| bfe_s(x, y, z)),
        K32::Prmt => each!(|x, y, z| prmt(x, y, z)),
        K32::ShfLeft => each!(|x, y, z| ((both(x, y) << (z & 31)) >> 32) as u32),
        K32::ShfRight => each!(|x, y, z| (both(x, y) >> (z & 31)) as u32),
        K32::Dp4aSS => each!(|x, y, z| dot4(x, y, z, true)),
        K32::Dp4aUS => each!(|x, y, z| dot4(x, y, z, false)),
        K32::AddF => each!(|x, y| bits(f(x) + f(y))),
        K32::SubF => each!(|x, y| bits(f(x) - f(y))),
        K32::MulF => each!(|x, y| bits(f(x) * f(y))),
        K32::FmaF => each!(|x, y, z| bits(f(x).mul_add(f(y), f(z)))),
        K32::DivF => each!(|x, y| bits(f(x) / f(y))),
        K32::RcpF => each!(|x| bits(1.0 / f(x))),
        K32::SqrtF => each!(|x| bits(f(x).sqrt())),
        K32::AbsF => each!(|x| x & 0x7fff_ffff),
        K32::NegF => each!(|x| x ^ 0x8000_0000),
        K32::MinF => each!(|x, y| min(x, y)),
        K32::MaxF => each!(|x, y| max(x, y)),
        K32::MaxNanF => each!(|x, y| if unordered(x, y) { NAN } else { max(x, y) }),
        K32::RcpApprox => each!(|x| bits(flush(1.0 / flush(f(x))))),
        K32::RsqrtApprox => each!(|x| bits((1.0 / f64::from(flush(f(x))).sqrt()) as f32)),
        K32::Ex2Approx => each!(|x| bits(flush(f64::from(flush(f(x))).exp2() as f32))),
        K32::MaxNanBf16x2 => each!(|x, y| halves(x, y, |h| f(u32::from(h) << 16))),
        K32::MaxNanF16x2 => each!(|x, y| halves(x, y, |h| f16::from_bits(h).to_f32_const())),
        K32::FmaBf16x2 => each!(|x, y, z| fma_halves(x, y, z, false)),
        K32::FmaReluBf16x2 => each!(|x, y, z| fma_halves(x, y, z, true)),
        K32::PackBf16 => each!(|x, y| to_bf16(x) << 16 | to_bf16(y)),
        K32::PackF16 => each!(|x, y| to_half(x) << 16 | to_half(y)),
        K32::Tf32 => each!(|x| if f(x).is_nan() {
            NAN
        } else if f(x).is_infinite() {
            x
        } else {
            x.wrapping_add(0x1000) & !0x1fff
        }),
        K32::HalfToF32 => each!(|x| bits(f16::from_bits(x as u16).to_f32_const())),
        K32::F32ToHalf => each!(|x| to_half(x)),
        K32::F32FromU => each!(|x| (x as f32).to_bits()),
        K32::F32FromU16 => each!(|x| f32::from(x as u16).to_bits()),
        K32::F32FromS => each!(|x| (x as i32 as f32).to_bits()),
        K32::F32ToU => each!(|x| f(x) as u32),
        K32::SignExtend8 => each!(|x| x as u8 as i8 as i32 as u32),
        K32::Low16 => each!(|x| x & 0xffff),
    };
    if narrow {
        out.iter_mut().for_each(|out| *out &= 0xffff);
    }
    out
}

/// One operation on 64-bit lanes.
#[inline(always)]
pub(super) fn alu64(k: K64, [a, b, c]: [&[u64; 32]; 3]) -> [u64; 32] {
    match k {
        K64::Add => all(|i| a[i].wrapping_add(b[i])),
        K64::Sub => all(|i| a[i].wrapping_sub(b[i])),
        K64::Mul => all(|i| a[i].wrapping_mul(b[i])),
        K64::Mad => all(|i| a[i].wrapping_mul(b[i]).wrapping_add(c[i])),
        K64::MulHiU => all(|i| ((u128::from(a[i]) * u128::from(b[i])) >> 64) as u64),
        K64::Div => all(|i| a[i].checked_div(b[i]).unwrap_or(!0)),
        K64::And => all(|i| a[i] & b[i]),
        K64::Or => all(|i| a[i] | b[i]),
        K64::Xor => all(|i| a[i] ^ b[i]),
        K64::Low32U => all(|i| u64::from(a[i] as u32)),
        K64::Low32S => all(|i| i64::from(a[i] as i32) as u64),
        K64::Not => all(|i| !a[i]),
        K64::Neg => all(|i| a[i].wrapping_neg()),
        K64::MinU => all(|i| a[i].min(b[i])),
        K64::MaxU => all(|i| a[i].max(b[i])),
    }
}

/// The lanes for which `how` holds.
#[inline(always)]
pub(super) fn compare32(how: Compare, a: &[u32; 32], b: &[u32; 32]) -> u32 {
    macro_rules! lanes {
        (|$x:ident, $y:ident| $e:expr) => {{
            let mut out = 0;
            for i in 0..32 {
                let ($x, $y) = (a[i], b[i]);
                out |= u32::from($e) << i;
            }
            out
        }};
    }
    match how {
        Compare::Eq => lanes!(|x, y| x == y),
        Compare::Ne => lanes!(|x, y| x != y),
        Compare::LtU => lanes!(|x, y| x < y),
        Compare::LeU => lanes!(|x, y| x <= y),
        Compare::GtU => lanes!(|x, y| x > y),
        Compare::GeU => lanes!(|x, y| x >= y),
        Compare::LtS => lanes!(|x, y| (x as i32) < y as i32),
        Compare::LeS => lanes!(|x, y| x as i32 <= y as i32),
        Compare::GtS => lanes!(|x, y| x as i32 > y as i32),
        Compare::GeS => lanes!(|x, y| x as i32 >= y as i32),
        Compare::EqF => lanes!(|x, y| f(x) == f(y)),
        Compare::NeF => lanes!(|x, y| f(x) < f(y) || f(x) > f(y)),
        Compare::LtF => lanes!(|x, y| f(x) < f(y)),
        Compare::LeF => lanes!(|x, y| f(x) <= f(y)),
        Compare::GtF => lanes!(|x, y| f(x) > f(y)),
        Compare::GeF => lanes!(|x, y| f(x) >= f(y)),
        Compare::EquF => lanes!(|x, y| f(x) == f(y) || unordered(x, y)),
        Compare::NeuF => lanes!(|x, y| f(x) != f(y)),
        Compare::LtuF => lanes!(|x, y| f(x) < f(y) || unordered(x, y)),
        Compare::LeuF => lanes!(|x, y| f(x) <= f(y) || unordered(x, y)),
        Compare::GtuF => lanes!(|x, y| f(x) > f(y) || unordered(x, y)),
        Compare::GeuF => lanes!(|x, y| f(x) >= f(y) || unordered(x, y)),
        Compare::NanF => lanes!(|x, y| unordered(x, y)),
        Compare::NumF => lanes!(|x, y| !unordered(x, y)),
    }
}

/// As [`compare32`]; integers only, what else is asked for holds nowhere.
#[inline(always)]
pub(super) fn compare64(how: Compare, a: &[u64; 32], b: &[u64; 32]) -> u32 {
    let mut out = 0;
    for i in 0..32 {
        let (x, y) = (a[i], b[i]);
        let holds = match how {
            Compare::Eq => x == y,
            Compare::Ne => x != y,
            Compare::LtU => x < y,
            Compare::LeU => x <= y,
            Compare::GtU => x > y,
            Compare::GeU => x >= y,
            Compare::LtS => (x as i64) < y as i64,
            Compare::LeS => x as i64 <= y as i64,
            Compare::GtS => x as i64 > y as i64,
            Compare::GeS => x as i64 >= y as i64,
            _ => false,
        };
        out |= u32::from(holds) << i;
    }
    out
}
