//! Memory, and what lanes, warps and blocks do together.

use super::super::op::{Element, Op, R, Shuffle, Space, Special, Wgmma};
use super::super::text::Operand;
use super::{DOUBLE, Decoder, PREDICATE, WORD};
use crate::tensor::mma::MmaKind;
use crate::tensor::wgmma::WgmmaKind;

/// The special register of this name.
pub(super) fn special(name: &str) -> Option<Special> {
    let axis = |rest: &str| match rest {
        "x" => Some(0),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    Some(match name.strip_prefix('%')?.split_once('.') {
        Some(("tid", a)) => Special::Tid(axis(a)?),
        Some(("ntid", a)) => Special::Ntid(axis(a)?),
        Some(("ctaid", a)) => Special::Ctaid(axis(a)?),
        Some(("nctaid", a)) => Special::Nctaid(axis(a)?),
        Some(("clusterid", a)) => Special::ClusterId(axis(a)?),
        Some(("nclusterid", a)) => Special::NclusterId(axis(a)?),
        None if name == "%cluster_ctarank" => Special::ClusterCtaRank,
        None if name == "%cluster_nctarank" => Special::ClusterNctaRank,
        None if name == "%laneid" => Special::LaneId,
        _ => return None,
    })
}

fn space(parts: &[&str]) -> Result<Space, String> {
    let has = |what: &str| parts.contains(&what);
    if has("global") {
        Ok(Space::Global)
    } else if has("shared::cluster") {
        Ok(Space::Cluster)
    } else if has("shared") || has("shared::cta") {
        Ok(Space::Shared)
    } else if has("param") {
        Ok(Space::Param)
    } else {
        Err("a generic address".into())
    }
}

fn element(last: &str) -> Result<Element, String> {
    Ok(match last {
        "u8" | "b8" => Element::U8,
        "s8" => Element::S8,
        "u16" | "b16" => Element::U16,
        "s16" => Element::S16,
        "b32" | "u32" | "s32" | "f32" => Element::B32,
        "b64" | "u64" | "s64" => Element::B64,
        _ => return Err(format!("an element of {last}")),
    })
}

impl Decoder {
    pub(super) fn load(&mut self, parts: &[&str], operands: &[Operand]) -> Result<Op, String> {
        let element = element(parts[parts.len() - 1])?;
        let first = operands.first().ok_or("no operand")?;
        let wide = match first {
            Operand::List(list) => list.iter().any(|r| self.class(r) == DOUBLE),
            one => self.class(one) == DOUBLE,
        };
        let (d, n) = self.some::<4>(first, if wide { DOUBLE } else { WORD })?;
        let polls = parts.contains(&"relaxed") || parts.contains(&"volatile");
        Ok(Op::Load {
            space: space(parts)?,
            element,
            wide,
            polls,
            d,
            n,
            at: self.address(operands, 1)?,
        })
    }

    pub(super) fn store(&mut self, parts: &[&str], operands: &[Operand]) -> Result<Op, String> {
        if parts[1] == "async" {
            let (to, a) = (self.address(operands, 0)?, self.word(operands, 1)?);
            return Ok(Op::StoreAsync { to, a, bar: self.address(operands, 2)? });
        }
        let element = element(parts[parts.len() - 1])?;
        let class = if element == Element::B64 { DOUBLE } else { WORD };
        let at = self.address(operands, 0)?;
        let (s, n) = self.some::<4>(operands.get(1).ok_or("no operand")?, class)?;
        Ok(Op::Store { space: space(parts)?, element, s, n, at })
    }

    /// `None`: an instruction of one lane.
    pub(super) fn collective(
        &mut self,
        parts: &[&str],
        opcode: &str,
        operands: &[Operand],
    ) -> Result<Option<Op>, String> {
        let last = parts[parts.len() - 1];
        Ok(Some(match parts[0] {
            "atom" => {
                let shared = match opcode {
                    "atom.global.add.u32" => false,
                    "atom.shared.add.u32" => true,
                    _ => return Err("an unknown atomic".into()),
                };
                let (d, at) = (self.word(operands, 0)?, self.address(operands, 1)?);
                Op::AtomAdd { shared, d, at, a: self.word(operands, 2)? }
            }
            "red" if opcode == "red.global.max.u64" => {
                Op::RedMax64 { at: self.address(operands, 0)?, a: self.double(operands, 1)? }
            }
            "shfl" => {
                let how = match parts[2] {
                    "bfly" => Shuffle::Bfly,
                    "idx" => Shuffle::Idx,
                    "up" => Shuffle::Up,
                    "down" => Shuffle::Down,
                    _ => return Err("an unknown shuffle".into()),
                };
                let (d, a) = (self.word(operands, 0)?, self.word(operands, 1)?);
                let (b, c) = (self.word(operands, 2)?, self.word(operands, 3)?);
                Op::Shfl { how, d, a, b, c, members: self.word(operands, 4)? }
            }
            "vote" if last == "pred" && parts[2] == "any" => {
                let (d, a) = (self.predicate(operands, 0)?, self.predicate(operands, 1)?);
                Op::VoteAny { d, a, members: self.word(operands, 2)? }
            }
            "vote" if parts[2] == "ballot" => {
                let (d, a) = (self.word(operands, 0)?, self.predicate(operands, 1)?);
                Op::Ballot { d, a, members: self.word(operands, 2)? }
            }
            "redux" => {
                let (d, a, members) =
                    (self.word(operands, 0)?, self.word(operands, 1)?, self.word(operands, 2)?);
                match opcode {
                    "redux.sync.add.s32" | "redux.sync.add.u32" => Op::ReduxAdd { d, a, members },
                    "redux.sync.max.u32" => Op::ReduxMax { d, a, members },
                    _ => return Err("an unknown reduction".into()),
                }
            }
            "bar" if parts[1] == "warp" => Op::WarpBarrier { members: self.word(operands, 0)? },
            "bar" | "barrier" if parts[1] == "sync" => {
                let id = self.word(operands, 0)?;
                let threads = if operands.len() > 1 { Some(self.word(operands, 1)?) } else { None };
                Op::Barrier { id, threads }
            }
            "barrier" if parts[1] == "cluster" && parts[2] == "arrive" => {
                Op::ClusterArrive { relaxed: parts.contains(&"relaxed") }
            }
            "barrier" if parts[1] == "cluster" && parts[2] == "wait" => Op::ClusterWait,
            "mapa" => {
                let (d, a) = (self.word(operands, 0)?, self.word(operands, 1)?);
                Op::MapRank { d, a, rank: self.word(operands, 2)? }
            }
            "cp" => self.copy(opcode, operands)?,
            "mbarrier" => match parts[1] {
                "init" => {
                    Op::BarInit { bar: self.address(operands, 0)?, count: self.word(operands, 1)? }
                }
                "inval" => Op::BarInval { bar: self.address(operands, 0)? },
                "arrive" => {
                    // Operand 0 is the state, which nobody reads.
                    let bar = self.address(operands, 1)?;
                    let expect =
                        if parts[2] == "expect_tx" { Some(self.word(operands, 2)?) } else { None };
                    Op::BarArrive { bar, expect }
                }
                "try_wait" | "test_wait" if parts[2] == "parity" => {
                    let (d, bar) = (self.predicate(operands, 0)?, self.address(operands, 1)?);
                    Op::BarTest { d, bar, parity: self.word(operands, 2)? }
                }
                _ => return Err("an unknown barrier".into()),
            },
            "ldmatrix" => {
                let (d, n) = self.some::<4>(operands.first().ok_or("no operand")?, WORD)?;
                if n != 4 {
                    return Err("a matrix load of other than four".into());
                }
                Op::Ldmatrix { trans: parts.contains(&"trans"), d, at: self.address(operands, 1)? }
            }
            "mma" => self.mma(opcode, operands)?,
            "wgmma" => match parts[1] {
                "fence" => Op::Nothing,
                "commit_group" => Op::WgmmaCommit,
                "wait_group" => Op::WgmmaWait { left: number(operands, 0)? as u32 },
                "mma_async" => self.wgmma(parts, operands)?,
                _ => return Err("unknown".into()),
            },
            _ => return Ok(None),
        }))
    }

    fn copy(&mut self, opcode: &str, operands: &[Operand]) -> Result<Op, String> {
        Ok(match opcode {
            "cp.async.ca.shared.global" | "cp.async.cg.shared.global" => {
                let (to, from) = (self.address(operands, 0)?, self.address(operands, 1)?);
                let bytes = number(operands, 2)? as u32;
                let read = if operands.len() > 3 { Some(self.word(operands, 3)?) } else { None };
                Op::CopyAsync { to, from, bytes, read }
            }
            "cp.async.commit_group" => Op::CopyCommit,
            "cp.async.wait_group" => Op::CopyWait { left: number(operands, 0)? as u32 },
            "cp.async.wait_all" => Op::CopyWait { left: 0 },
            "cp.async.mbarrier.arrive.noinc.shared.b64" => {
                Op::CopyArrive { bar: self.address(operands, 0)? }
            }
            _ if opcode.starts_with("cp.async.bulk.tensor.") => {
                let to = self.address(operands, 0)?;
                let Some(Operand::Address(map, 0, rest)) = operands.get(1) else {
                    return Err("a tensor map expected".into());
                };
                let map = self.value(map, DOUBLE)?;
                let Some(Operand::List(list)) = rest.first() else {
                    return Err("coordinates expected".into());
                };
                let at =
                    list.iter().map(|c| self.value(c, WORD)).collect::<Result<Box<[R]>, _>>()?;
                let bar = self.address(operands, 2)?;
                let offsets = match operands.get(3) {
                    Some(Operand::List(list)) => Some(
                        list.iter()
                            .map(|c| self.value(c, WORD))
                            .collect::<Result<Box<[R]>, _>>()?,
                    ),
                    _ => None,
                };
                if offsets.is_some() != opcode.contains("im2col") {
                    return Err("offsets belong to im2col".into());
                }
                Op::TensorCopy { to, map, at, bar, offsets }
            }
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes" => {
                let (to, from) = (self.address(operands, 0)?, self.address(operands, 1)?);
                let bytes = self.word(operands, 2)?;
                Op::BulkCopy { to, from, bytes, bar: self.address(operands, 3)? }
            }
            _ => return Err("an unknown copy".into()),
        })
    }

    fn mma(&mut self, opcode: &str, operands: &[Operand]) -> Result<Op, String> {
        let kind = match opcode.strip_prefix("mma.sync.aligned.").unwrap_or("") {
            "m16n8k16.row.col.f32.bf16.bf16.f32" => MmaKind::Bf16,
            "m16n8k16.row.col.f32.f16.f16.f32" => MmaKind::F16,
            "m16n8k32.row.col.s32.s8.s8.s32" => MmaKind::S8,
            "m16n8k32.row.col.s32.u8.s8.s32" => MmaKind::U8S8,
            "m16n8k8.row.col.f32.tf32.tf32.f32" => MmaKind::Tf32,
            _ => return Err("an unknown product".into()),
        };
        let [d, a, b, c] = operands else { return Err("four operands expected".into()) };
        Ok(Op::Mma {
            kind,
            d: self.some::<4>(d, WORD)?.0,
            a: self.some::<4>(a, WORD)?.0,
            b: self.some::<2>(b, WORD)?.0,
            c: self.some::<4>(c, WORD)?.0,
        })
    }

    fn wgmma(&mut self, parts: &[&str], operands: &[Operand]) -> Result<Op, String> {
        // wgmma.mma_async.sync.aligned.mMnNkK.d.a.b
        let shape = parts[4];
        let n = shape
            .split_once('n')
            .and_then(|(_, rest)| rest.split_once('k'))
            .and_then(|(n, _)| n.parse().ok())
            .ok_or("an unknown shape")?;
        let kind = match (parts[5], parts[6], parts[7]) {
            ("f32", "bf16", "bf16") => WgmmaKind::Bf16,
            ("f32", "f16", "f16") => WgmmaKind::F16,
            ("s32", "s8", "s8") => WgmmaKind::S8,
            _ => return Err("an unknown product".into()),
        };
        let Some(Operand::List(list)) = operands.first() else {
            return Err("accumulators expected".into());
        };
        let d = list.iter().map(|r| self.value(r, WORD)).collect::<Result<Box<[R]>, _>>()?;
        let a = match &operands[1] {
            list @ Operand::List(_) => Ok(self.some::<4>(list, WORD)?.0),
            one => Err(self.value(one, DOUBLE)?),
        };
        let b = self.double(operands, 2)?;
        let add = self.value(&operands[3].clone(), PREDICATE)?;
        let immediate = |at: usize| -> Result<i64, String> {
            if at < operands.len() { number(operands, at).map(|v| v as i64) } else { Ok(0) }
        };
        // scale-a, scale-b, then how A (when it is in shared memory) and B lie.
        let (negate, transpose) = match kind {
            WgmmaKind::S8 => ([false; 2], [false; 2]),
            _ if a.is_ok() => ([immediate(4)? < 0, immediate(5)? < 0], [false, immediate(6)? != 0]),
            _ => ([immediate(4)? < 0, immediate(5)? < 0], [immediate(6)? != 0, immediate(7)? != 0]),
        };
        Ok(Op::Wgmma(Box::new(Wgmma { kind, n, d, a, b, add, negate, transpose })))
    }
}

fn number(operands: &[Operand], at: usize) -> Result<u64, String> {
    match operands.get(at) {
        Some(Operand::Number(value)) => Ok(*value),
        _ => Err("a number expected".into()),
    }
}
