//! One instruction.

use std::sync::LazyLock;
use std::time::Instant;

use super::alu::{all, alu32, alu64, compare32, compare64, set};
use super::group::{Bad, Group, Next, failed};
use super::warp::{Fragment, Wait, Warp, lanes};
use crate::ptx::op::{KP, Op, R, Special};

/// Where generic addresses of shared memory begin.
pub(super) const GENERIC_SHARED: u64 = 0x4000_0000_0000_0000;
/// The bits of a block's rank, plus one, in an address of another block's shared memory.
pub(super) const RANK_SHIFT: u32 = 24;

impl<'a> Group<'a> {
    /// Runs `op` on the lanes of `mask`.
    #[inline(always)]
    pub(super) fn step(
        &mut self,
        warp: &mut Warp<'a>,
        fragment: &mut Fragment,
        mask: u32,
        op: &'a Op,
    ) -> Result<Next, Bad> {
        let kernel = self.launch.kernel;
        macro_rules! word {
            ($r:expr) => {
                warp.word(kernel, $r)
            };
        }
        macro_rules! double {
            ($r:expr) => {
                warp.double(kernel, $r)
            };
        }
        macro_rules! words {
            ($d:expr, |$i:ident| $e:expr) => {
                {
                let value = all(|$i| $e);
                set(&mut warp.words[$d.0 as usize], mask, &value);
            }
            };
        }
        macro_rules! doubles {
            ($d:expr, |$i:ident| $e:expr) => {
                {
                let value = all(|$i| $e);
                set(&mut warp.doubles[$d.0 as usize], mask, &value);
            }
            };
        }
        match op {
            Op::Nothing => {}
            Op::Mov32 { d, a } => {
                let value = *word!(*a);
                set(&mut warp.words[d.0 as usize], mask, &value);
            }
            Op::Mov64 { d, a } => {
                let value = *double!(*a);
                set(&mut warp.doubles[d.0 as usize], mask, &value);
            }
            Op::MovP { d, a } => {
                let a = warp.predicate(*a);
                warp.set_predicate(*d, a, mask);
            }
            Op::Special { d, what } => {
                let value = self.special(warp, *what);
                set(&mut warp.words[d.0 as usize], mask, &value);
            }
            Op::Clock { d } => {
                let now = ticks();
                set(&mut warp.doubles[d.0 as usize], mask, &[now; 32]);
            }
            Op::Split32 { lo, hi, a } => {
                let a = *word!(*a);
                if *lo != R::SINK {
                    words!(lo, |i| a[i] & 0xffff);
                }
                if *hi != R::SINK {
                    words!(hi, |i| a[i] >> 16);
                }
            }
            Op::Join32 { d, lo, hi } => {
                let (lo, hi) = (word!(*lo), word!(*hi));
                words!(d, |i| hi[i] << 16 | lo[i] & 0xffff);
            }
            Op::Split64 { lo, hi, a } => {
                let a = *double!(*a);
                if *lo != R::SINK {
                    words!(lo, |i| a[i] as u32);
                }
                if *hi != R::SINK {
                    words!(hi, |i| (a[i] >> 32) as u32);
                }
            }
            Op::Join64 { d, lo, hi } => {
                let (lo, hi) = (word!(*lo), word!(*hi));
                doubles!(d, |i| u64::from(hi[i]) << 32 | u64::from(lo[i]));
            }
            Op::Alu32 { k, narrow, d, a, b, c } => {
                let (a, b, c) = (word!(*a), word!(*b), word!(*c));
                let value = alu32(*k, *narrow, [a, b, c]);
                set(&mut warp.words[d.0 as usize], mask, &value);
            }
            Op::Alu64 { k, d, a, b, c } => {
                let (a, b, c) = (double!(*a), double!(*b), double!(*c));
                let value = alu64(*k, [a, b, c]);
                set(&mut warp.doubles[d.0 as usize], mask, &value);
            }
            Op::Shift64 { left, signed, d, a, b } => {
                let (a, b) = (double!(*a), word!(*b));
                if *left {
                    doubles!(d, |i| if b[i] > 63 { 0 } else { a[i] << b[i] });
                } else if *signed {
                    doubles!(d, |i| (a[i] as i64 >> b[i].min(63)) as u64);
                } else {
                    doubles!(d, |i| if b[i] > 63 { 0 } else { a[i] >> b[i] });
                }
            }
            Op::BfeU64 { d, a, b, c } => {
                let (a, b, c) = (double!(*a), word!(*b), word!(*c));
                doubles!(d, |i| {
                    let (at, len) = (b[i] & 0xff, c[i] & 0xff);
                    let kept = if len > 63 { !0 } else { (1_u64 << len) - 1 };
                    if at > 63 { 0 } else { a[i] >> at & kept }
                });
            }
            Op::MulWide { signed, d, a, b } => {
                let (a, b) = (word!(*a), word!(*b));
                if *signed {
                    doubles!(d, |i| (i64::from(a[i] as i32) * i64::from(b[i] as i32)) as u64);
                } else {
                    doubles!(d, |i| u64::from(a[i]) * u64::from(b[i]));
                }
            }
            Op::Widen { signed, d, a } => {
                let a = word!(*a);
                if *signed {
                    doubles!(d, |i| i64::from(a[i] as i32) as u64);
                } else {
                    doubles!(d, |i| u64::from(a[i]));
                }
            }
            Op::Narrow { half, d, a } => {
                let a = double!(*a);
                let kept = if *half { 0xffff } else { !0 };
                words!(d, |i| a[i] as u32 & kept);
            }
            Op::F32From64 { signed, d, a } => {
                let a = double!(*a);
                if *signed {
                    words!(d, |i| (a[i] as i64 as f32).to_bits());
                } else {
                    words!(d, |i| (a[i] as f32).to_bits());
                }
            }
            Op::U64FromF32 { d, a } => {
                let a = word!(*a);
                // What is no number has its own result, unlike that of 32 bits.
                let cut = |x: f32| if x.is_nan() { 1 << 63 } else { x as u64 };
                doubles!(d, |i| cut(f32::from_bits(a[i])));
            }
            Op::SetP32 { how, d, a, b } => {
                let (a, b) = (word!(*a), word!(*b));
                warp.set_predicate(*d, compare32(*how, a, b), mask);
            }
            Op::SetP64 { how, d, a, b } => {
                let (a, b) = (double!(*a), double!(*b));
                warp.set_predicate(*d, compare64(*how, a, b), mask);
            }
            Op::Logic { k, d, a, b } => {
                let (a, b) = (warp.predicate(*a), warp.predicate(*b));
                let value = match k {
                    KP::And => a & b,
                    KP::Or => a | b,
                    KP::Xor => a ^ b,
                    KP::Not => !a,
                };
                warp.set_predicate(*d, value, mask);
            }
            Op::Select32 { d, a, b, p } => {
                let (a, b, p) = (word!(*a), word!(*b), warp.predicate(*p));
                words!(d, |i| if p >> i & 1 != 0 { a[i] } else { b[i] });
            }
            Op::Select64 { d, a, b, p } => {
                let (a, b, p) = (double!(*a), double!(*b), warp.predicate(*p));
                doubles!(d, |i| if p >> i & 1 != 0 { a[i] } else { b[i] });
            }
            Op::GenericShared { d, a } => {
                let a = double!(*a);
                doubles!(d, |i| a[i].wrapping_add(GENERIC_SHARED));
            }
            Op::MapRank { d, a, rank } => {
                let (a, rank) = (word!(*a), word!(*rank));
                for lane in lanes(mask) {
                    if rank[lane] as usize >= self.cluster_size || a[lane] >> RANK_SHIFT != 0 {
                        return failed(
                            lane,
                            format!("rank {} of address {:#x}", rank[lane], a[lane]),
                        );
                    }
                }
                words!(d, |i| a[i] | rank[i].wrapping_add(1) << RANK_SHIFT);
            }
            Op::ParamAddress { d, offset } => {
                let address = self.launch.params.as_ptr() as u64 + u64::from(*offset);
                set(&mut warp.doubles[d.0 as usize], mask, &[address; 32]);
            }
            Op::Load { space, element, wide, polls, d, n, at } => {
                self.load(
                    warp,
                    fragment.pc,
                    mask,
                    (*space, *element, *wide),
                    &d[..*n as usize],
                    at,
                )?;
                if *polls {
                    warp.seen = Some(self.shown);
                    return Ok(Next::Turn);
                }
            }
            Op::Store { space, element, shown, s, n, at } => {
                self.shown += u64::from(*shown);
                self.store(warp, fragment.pc, mask, (*space, *element), &s[..*n as usize], at)?;
            }
            Op::Branch { to, uniform } => {
                if mask == fragment.mask {
                    return Ok(Next::Jump(*to));
                }
                if mask == 0 {
                    return Ok(Next::Go);
                }
                if *uniform {
                    return failed(mask.trailing_zeros() as usize, "a uniform branch that is none");
                }
                fragment.mask &= !mask;
                fragment.pc += 1;
                return Ok(Next::Apart(Fragment { pc: *to, mask, wait: Wait::Ready }));
            }
            Op::BranchTable { index, to } => {
                let index = word!(*index);
                let Some(first) = lanes(mask).next() else { return Ok(Next::Go) };
                let value = index[first];
                let Some(target) = to.get(value as usize) else {
                    return failed(first, format!("branch {value} of {}", to.len()));
                };
                let same = lanes(mask)
                    .filter(|lane| index[*lane] == value)
                    .fold(0, |m, lane| m | 1 << lane);
                if same == fragment.mask {
                    return Ok(Next::Jump(*target));
                }
                // The others come here again.
                fragment.mask &= !same;
                return Ok(Next::Apart(Fragment { pc: *target, mask: same, wait: Wait::Ready }));
            }
            Op::Exit => {
                self.abandon(warp, mask)?;
                return Ok(if mask == 0 { Next::Go } else { Next::End(mask) });
            }
            Op::Trap => {
                if let Some(lane) = lanes(mask).next() {
                    return failed(lane, "a trap");
                }
            }
            Op::DependencyWait => warp.waited |= mask,
            other => return self.collective(warp, fragment, mask, other),
        }
        Ok(Next::Go)
    }

    fn special(&self, warp: &Warp, what: Special) -> [u32; 32] {
        let block = &self.blocks[warp.block];
        let sides = self.launch.block;
        let cluster = self.launch.cluster;
        let of = |axis: u8, values: [u32; 3]| [values[axis as usize]; 32];
        match what {
            Special::Tid(axis) => std::array::from_fn(|lane| {
                let n = warp.number * 32 + lane as u32;
                match axis {
                    0 => n % sides[0],
                    1 => n / sides[0] % sides[1],
                    _ => n / sides[0] / sides[1],
                }
            }),
            Special::Ntid(axis) => of(axis, sides),
            Special::Ctaid(axis) => of(axis, block.index),
            Special::Nctaid(axis) => of(axis, self.launch.grid),
            Special::ClusterCtaRank => [block.rank; 32],
            Special::ClusterNctaRank => [self.cluster_size as u32; 32],
            Special::ClusterId(axis) => {
                of(axis, std::array::from_fn(|i| block.index[i] / cluster[i]))
            }
            Special::NclusterId(axis) => {
                of(axis, std::array::from_fn(|i| self.launch.grid[i] / cluster[i]))
            }
            Special::LaneId => std::array::from_fn(|lane| lane as u32),
        }
    }
}

/// Two for each nanosecond, about as fast as a GPU's clock.
fn ticks() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64 * 2
}
