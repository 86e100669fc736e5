//! `f32` as unsigned keys of the same order, for selection by radix and for argmax.
//!
//! From the lowest: NaN (key 0), -inf, ..., -0, +0, ..., +inf.

/// The key of `x`: `a < b` gives a smaller key, equal bits the same key, NaN the key 0.
#[inline(always)]
pub const fn order_key(x: f32) -> u32 {
    let bits = x.to_bits();
    let key = if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 };
    if x.is_nan() { 0 } else { key }
}

/// The number whose [`order_key`] is `key`; 0 gives a NaN.
#[inline(always)]
pub const fn order_value(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key & 0x7fff_ffff } else { !key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_order_and_comes_back() {
        let inf = f32::INFINITY;
        let line = [-inf, f32::MIN, -1.0, -1e-45, -0.0, 0.0, 1e-45, 0.5, 1.0, f32::MAX, inf];
        for pair in line.windows(2) {
            assert!(order_key(pair[0]) < order_key(pair[1]), "{pair:?}");
        }
        assert!(line.iter().all(|&x| order_value(order_key(x)).to_bits() == x.to_bits()));
        assert_eq!((order_key(f32::NAN), order_key(-f32::NAN)), (0, 0));
        assert!(order_key(-inf) > 0);
        assert!(order_value(0).is_nan());
    }
}
