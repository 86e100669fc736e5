//! What lanes, warps and blocks do together.

use super::super::op::{Op, Shuffle, Special, Wgmma};
use super::super::text::Operand;
use super::{Class, Decoder, expect, number};
use crate::tensor::mma::MmaKind;
use crate::tensor::wgmma::WgmmaKind;

/// The special register of 32 bits of this name.
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

impl Decoder<'_> {
    /// `None`: another instruction.
    pub(super) fn together(
        &mut self,
        opcode: &str,
        operands: &[Operand],
    ) -> Result<Option<Op>, String> {
        use Class::{Double, Predicate, Word};
        Ok(Some(match opcode {
            "cvta.shared.u64" => {
                Op::GenericShared { d: self.to(operands, Double)?, a: self.double(operands, 1)? }
            }
            "cvta.param.u64" | "cvta.to.global.u64" => {
                Op::Mov64 { d: self.to(operands, Double)?, a: self.double(operands, 1)? }
            }
            "ret" | "exit" => Op::Exit,
            "trap" => Op::Trap,
            "griddepcontrol.wait" => Op::DependencyWait,
            "griddepcontrol.launch_dependents" => Op::Nothing,
            "atom.global.add.u32" | "atom.shared.add.u32" => {
                let (d, at) = (self.to(operands, Word)?, self.address(operands, 1)?);
                let shared = opcode.starts_with("atom.shared");
                Op::AtomAdd { shared, d, at, a: self.word(operands, 2)? }
            }
            "red.global.max.u64" => {
                Op::RedMax64 { at: self.address(operands, 0)?, a: self.double(operands, 1)? }
            }
            "shfl.sync.bfly.b32" => self.shuffle(Shuffle::Bfly, operands)?,
            "shfl.sync.idx.b32" => self.shuffle(Shuffle::Idx, operands)?,
            "shfl.sync.up.b32" => self.shuffle(Shuffle::Up, operands)?,
            "shfl.sync.down.b32" => self.shuffle(Shuffle::Down, operands)?,
            "vote.sync.any.pred" => {
                let (d, a) = (self.to(operands, Predicate)?, self.predicate(operands, 1)?);
                Op::VoteAny { d, a, members: self.word(operands, 2)? }
            }
            "vote.sync.ballot.b32" => {
                let (d, a) = (self.to(operands, Word)?, self.predicate(operands, 1)?);
                Op::Ballot { d, a, members: self.word(operands, 2)? }
            }
            "redux.sync.add.s32" | "redux.sync.add.u32" | "redux.sync.max.u32" => {
                let (d, a) = (self.to(operands, Word)?, self.word(operands, 1)?);
                let members = self.word(operands, 2)?;
                if opcode.contains("add") {
                    Op::ReduxAdd { d, a, members }
                } else {
                    Op::ReduxMax { d, a, members }
                }
            }
            "bar.warp.sync" => Op::WarpBarrier { members: self.word(operands, 0)? },
            "bar.sync" | "barrier.sync.aligned" => {
                let id = self.word(operands, 0)?;
                let threads = if operands.len() > 1 { Some(self.word(operands, 1)?) } else { None };
                Op::Barrier { id, threads, waits: true }
            }
            "bar.arrive" | "barrier.arrive.aligned" => {
                expect(operands, 2)?;
                let (id, threads) = (self.word(operands, 0)?, Some(self.word(operands, 1)?));
                Op::Barrier { id, threads, waits: false }
            }
            "barrier.cluster.arrive.aligned" => Op::ClusterArrive { relaxed: false },
            "barrier.cluster.arrive.relaxed.aligned" => Op::ClusterArrive { relaxed: true },
            "barrier.cluster.wait.aligned" => Op::ClusterWait,
            "mapa.shared::cluster.u32" => {
                let (d, a) = (self.to(operands, Word)?, self.word(operands, 1)?);
                Op::MapRank { d, a, rank: self.word(operands, 2)? }
            }
            "ldmatrix.sync.aligned.m8n8.x4.b16" | "ldmatrix.sync.aligned.m8n8.x4.trans.b16" => {
                let d = self.to_words(operands.first())?;
                let d = d.try_into().map_err(|_| "four registers expected")?;
                let (trans, at) = (opcode.contains(".trans."), self.address(operands, 1)?);
                Op::Ldmatrix { trans, d, at }
            }
            "movmatrix.sync.aligned.m8n8.trans.b16" => {
                expect(operands, 2)?;
                let d = self.to(operands, Word)?;
                Op::Movmatrix { d, a: self.word(operands, 1)? }
            }
            "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16" => {
                Op::Stmatrix { at: self.address(operands, 0)?, a: self.list(operands, 1)? }
            }
            _ => return Ok(None),
        }))
    }

    fn shuffle(&mut self, how: Shuffle, operands: &[Operand]) -> Result<Op, String> {
        expect(operands, 5)?;
        let (d, a) = (self.to(operands, Class::Word)?, self.word(operands, 1)?);
        let (b, c) = (self.word(operands, 2)?, self.word(operands, 3)?);
        Ok(Op::Shfl { how, d, a, b, c, members: self.word(operands, 4)? })
    }

    pub(super) fn mbarrier(&mut self, opcode: &str, operands: &[Operand]) -> Result<Op, String> {
        Ok(match opcode {
            "mbarrier.init.shared.b64" => {
                Op::BarInit { bar: self.address(operands, 0)?, count: self.word(operands, 1)? }
            }
            "mbarrier.inval.shared.b64" => Op::BarInval { bar: self.address(operands, 0)? },
            // Operand 0 is the state, which nobody reads.
            "mbarrier.arrive.shared.b64" => {
                expect(operands, 2)?;
                Op::BarArrive { bar: self.address(operands, 1)?, expect: None }
            }
            "mbarrier.arrive.expect_tx.shared.b64" => {
                let bar = self.address(operands, 1)?;
                Op::BarArrive { bar, expect: Some(self.word(operands, 2)?) }
            }
            "mbarrier.try_wait.parity.shared.b64" => {
                expect(operands, 3)?;
                let (d, bar) = (self.to(operands, Class::Predicate)?, self.address(operands, 1)?);
                Op::BarTest { d, bar, parity: self.word(operands, 2)? }
            }
            _ => return Err("an unknown instruction".into()),
        })
    }

    pub(super) fn mma(&mut self, opcode: &str, operands: &[Operand]) -> Result<Op, String> {
        let kind = match opcode.strip_prefix("mma.sync.aligned.").unwrap_or("") {
            "m16n8k16.row.col.f32.bf16.bf16.f32" => MmaKind::Bf16,
            "m16n8k16.row.col.f32.f16.f16.f32" => MmaKind::F16,
            "m16n8k32.row.col.s32.s8.s8.s32" => MmaKind::S8,
            "m16n8k32.row.col.s32.u8.s8.s32" => MmaKind::U8S8,
            "m16n8k8.row.col.f32.tf32.tf32.f32" => MmaKind::Tf32,
            _ => return Err("an unknown product".into()),
        };
        expect(operands, 4)?;
        let d = self.to_words(operands.first())?;
        Ok(Op::Mma {
            kind,
            d: d.try_into().map_err(|_| "four registers expected")?,
            a: self.list(operands, 1)?,
            b: self.list(operands, 2)?,
            c: self.list(operands, 3)?,
        })
    }

    pub(super) fn wgmma(
        &mut self,
        opcode: &str,
        parts: &[&str],
        operands: &[Operand],
    ) -> Result<Op, String> {
        let (shape, types) = match (opcode, parts) {
            ("wgmma.fence.sync.aligned", _) => return Ok(Op::Nothing),
            ("wgmma.commit_group.sync.aligned", _) => return Ok(Op::WgmmaCommit),
            ("wgmma.wait_group.sync.aligned", _) => {
                return Ok(Op::WgmmaWait { left: number(operands, 0)? });
            }
            (_, ["wgmma", "mma_async", "sync", "aligned", shape, d, a, b]) => {
                (*shape, [*d, *a, *b])
            }
            _ => return Err("an unknown instruction".into()),
        };
        let (kind, k) = match types {
            ["f32", "bf16", "bf16"] => (WgmmaKind::Bf16, "k16"),
            ["f32", "f16", "f16"] => (WgmmaKind::F16, "k16"),
            ["s32", "s8", "s8"] => (WgmmaKind::S8, "k32"),
            _ => return Err("an unknown product".into()),
        };
        let n = shape.strip_prefix("m64n").and_then(|n| n.strip_suffix(k)?.parse().ok());
        let n: usize = n.filter(|n| n % 8 == 0 && *n <= 256).ok_or("an unknown shape")?;
        let d = self.to_words(operands.first())?;
        if n == 0 || d.len() != n / 2 {
            return Err("another number of accumulators expected".into());
        }
        let a = match operands.get(1) {
            Some(Operand::List(_)) => Ok(self.list(operands, 1)?),
            _ => Err(self.double(operands, 1)?),
        };
        let (b, add) = (self.double(operands, 2)?, self.predicate(operands, 3)?);
        let immediate = |at: usize| match operands.get(at) {
            Some(Operand::Number(value)) => Ok(*value as i64),
            _ => Err("a number expected"),
        };
        // scale-a, scale-b, then how A (when it is in shared memory) and B lie.
        let (negate, transpose) = match (kind, &a) {
            (WgmmaKind::S8, _) => {
                expect(operands, 4)?;
                ([false; 2], [false; 2])
            }
            (_, Ok(_)) => {
                expect(operands, 7)?;
                ([immediate(4)? < 0, immediate(5)? < 0], [false, immediate(6)? != 0])
            }
            (_, Err(_)) => {
                expect(operands, 8)?;
                ([immediate(4)? < 0, immediate(5)? < 0], [immediate(6)? != 0, immediate(7)? != 0])
            }
        };
        Ok(Op::Wgmma(Box::new(Wgmma { kind, n, d: d.into(), a, b, add, negate, transpose })))
    }
}
