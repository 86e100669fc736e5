//! Accesses to memory.

use super::super::op::{Element, Op, R, Space};
use super::super::text::Operand;
use super::{Class, Decoder, expect, number};

/// What stands between `ld` or `st` and the type.
struct How {
    space: Space,
    /// Registers of a list, or none.
    list: Option<usize>,
    polls: bool,
}

fn how(parts: &[&str]) -> Result<How, String> {
    let (mut space, mut list, mut polls) = (None, None, false);
    for part in parts {
        match *part {
            "global" => space = Some(Space::Global),
            "shared" => space = Some(Space::Shared),
            "shared::cluster" => space = Some(Space::Cluster),
            "param" => space = Some(Space::Param),
            "v2" => list = Some(2),
            "v4" => list = Some(4),
            "relaxed" | "volatile" => polls = true,
            "gpu" | "nc" | "L1::no_allocate" | "L2::cache_hint" => {}
            _ => return Err(format!("an access that is .{part}")),
        }
    }
    Ok(How { space: space.ok_or("a generic address")?, list, polls })
}

fn element(kind: &str) -> Result<Element, String> {
    Ok(match kind {
        "u8" | "b8" => Element::U8,
        "s8" => Element::S8,
        "u16" | "b16" => Element::U16,
        "s16" => Element::S16,
        "b32" | "u32" | "f32" => Element::B32,
        "s32" => Element::S32,
        "b64" | "u64" | "s64" => Element::B64,
        _ => return Err(format!("an element of {kind}")),
    })
}

impl Decoder<'_> {
    pub(super) fn load(
        &mut self,
        parts: &[&str],
        kind: &str,
        operands: &[Operand],
    ) -> Result<Op, String> {
        let operands = match parts.contains(&"L2::cache_hint") {
            true => {
                expect(operands, 3)?;
                self.double(operands, 2)?;
                &operands[..2]
            }
            false => operands,
        };
        expect(operands, 2)?;
        let (How { space, list, polls }, element) = (how(parts)?, element(kind)?);
        let (at, single) = (self.address(operands, 1)?, [operands[0].clone()]);
        let registers = match (&operands[0], list) {
            (Operand::List(registers), Some(n)) if registers.len() == n => &registers[..],
            (Operand::Name(_), None) => &single[..],
            _ => return Err("as many registers as elements expected".into()),
        };
        let (mut d, mut class) = ([R::SINK; 4], None);
        for (place, register) in d.iter_mut().zip(registers) {
            let Operand::Name(name) = register else { return Err("a register expected".into()) };
            if name == "_" && list.is_some() {
                continue;
            }
            let (found, r) = self.register(name)?;
            if class.is_some_and(|class| class != found) {
                return Err("registers of one size expected".into());
            }
            (*place, class) = (r, Some(found));
        }
        // An element may be smaller than its register.
        let room = match class {
            Some(Class::Half) => 2,
            Some(Class::Word) => 4,
            Some(Class::Double) => 8,
            Some(Class::Predicate) | None => 0,
        };
        if element.bytes() > room || element.bytes() * registers.len() as u64 > 16 {
            return Err("registers of another size expected".into());
        }
        let (n, wide) = (registers.len() as u8, class == Some(Class::Double));
        let element = match (element, class) {
            (Element::S8, Some(Class::Half)) => Element::S8Half,
            (Element::S16, Some(Class::Half)) => Element::U16,
            (element, _) => element,
        };
        Ok(Op::Load { space, element, wide, polls, d, n, at })
    }

    pub(super) fn store(
        &mut self,
        parts: &[&str],
        kind: &str,
        operands: &[Operand],
    ) -> Result<Op, String> {
        expect(operands, 2)?;
        let (How { space, list, polls: shown }, element) = (how(parts)?, element(kind)?);
        let (at, single) = (self.address(operands, 0)?, [operands[1].clone()]);
        let registers = match (&operands[1], list) {
            (Operand::List(registers), Some(n)) if registers.len() == n => &registers[..],
            (Operand::Name(_) | Operand::Number(_), None) => &single[..],
            _ => return Err("as many registers as elements expected".into()),
        };
        if element.bytes() * registers.len() as u64 > 16 {
            return Err("more than 16 bytes".into());
        }
        let mut s = [R::SINK; 4];
        for (place, register) in s.iter_mut().zip(registers) {
            // An element may be the low part of its register.
            let class = match register {
                Operand::Name(name) => self.register(name)?.0,
                _ if element == Element::B64 => Class::Double,
                _ => Class::Word,
            };
            let fits = match class {
                Class::Half => element.bytes() <= 2,
                Class::Word => element.bytes() <= 4,
                Class::Double => element == Element::B64,
                Class::Predicate => false,
            };
            if !fits {
                return Err("registers of another size expected".into());
            }
            *place = self.value(register, class)?;
        }
        Ok(Op::Store { space, element, shown, s, n: registers.len() as u8, at })
    }

    pub(super) fn store_async(&mut self, opcode: &str, operands: &[Operand]) -> Result<Op, String> {
        if opcode != "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32" {
            return Err("an unknown store".into());
        }
        expect(operands, 3)?;
        let (to, a) = (self.address(operands, 0)?, self.word(operands, 1)?);
        Ok(Op::StoreAsync { to, a, bar: self.address(operands, 2)? })
    }

    pub(super) fn copy(&mut self, opcode: &str, operands: &[Operand]) -> Result<Op, String> {
        Ok(match opcode {
            "cp.async.ca.shared.global" | "cp.async.cg.shared.global" => {
                let (to, from) = (self.address(operands, 0)?, self.address(operands, 1)?);
                let bytes = number(operands, 2)?;
                if bytes != 16 && (opcode.contains(".cg.") || !matches!(bytes, 4 | 8)) {
                    return Err("a size that there is not".into());
                }
                let read = if operands.len() > 3 { Some(self.word(operands, 3)?) } else { None };
                expect(operands, if read.is_some() { 4 } else { 3 })?;
                Op::CopyAsync { to, from, bytes, read }
            }
            "cp.async.commit_group" => Op::CopyCommit,
            "cp.async.wait_group" => Op::CopyWait { left: number(operands, 0)? },
            "cp.async.mbarrier.arrive.noinc.shared.b64" => {
                Op::CopyArrive { bar: self.address(operands, 0)? }
            }
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes" => {
                expect(operands, 4)?;
                let (to, from) = (self.address(operands, 0)?, self.address(operands, 1)?);
                let bytes = self.word(operands, 2)?;
                Op::BulkCopy { to, from, bytes, bar: self.address(operands, 3)? }
            }
            "cp.async.cg.shared.global.L2::cache_hint"
            | "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
            | "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint" =>
            {
                let policy = operands.len().saturating_sub(1);
                self.double(operands, policy)?;
                return self.copy(opcode.trim_end_matches(".L2::cache_hint"), &operands[..policy]);
            }
            "cp.async.bulk.commit_group" => Op::StoreCommit,
            "cp.async.bulk.wait_group.read" => Op::StoreWait { left: number(operands, 0)? },
            _ if opcode.ends_with(".bulk_group") => return self.tensor_store(opcode, operands),
            _ => return self.tensor_copy(opcode, operands),
        })
    }

    fn tensor_copy(&mut self, opcode: &str, operands: &[Operand]) -> Result<Op, String> {
        let rest = opcode.strip_prefix("cp.async.bulk.tensor.").and_then(|rest| {
            rest.strip_suffix(".mbarrier::complete_tx::bytes")?
                .split_once("d.shared::cluster.global.")
        });
        let (rank, im2col) = match rest {
            Some((rank, "tile")) => (rank, false),
            Some((rank, "im2col")) => (rank, true),
            _ => return Err("an unknown copy".into()),
        };
        expect(operands, if im2col { 4 } else { 3 })?;
        let (map, at) = self.tensor_place(rank, &operands[1])?;
        let (to, bar, rank) = (self.address(operands, 0)?, self.address(operands, 2)?, at.len());
        let offsets = match operands.get(3) {
            Some(Operand::List(list)) if list.len() + 2 == rank => {
                let halves = list.iter().map(|operand| self.value(operand, Class::Half));
                Some(halves.collect::<Result<_, _>>()?)
            }
            None => None,
            _ => return Err("an offset for each side of the image expected".into()),
        };
        Ok(Op::TensorCopy { to, map, at, bar, offsets })
    }

    fn tensor_store(&mut self, opcode: &str, operands: &[Operand]) -> Result<Op, String> {
        let rank = opcode
            .strip_prefix("cp.async.bulk.tensor.")
            .and_then(|rest| rest.strip_suffix("d.global.shared::cta.tile.bulk_group"));
        expect(operands, 2)?;
        let (map, at) = self.tensor_place(rank.ok_or("an unknown copy")?, &operands[0])?;
        Ok(Op::TensorStore { map, at, from: self.address(operands, 1)? })
    }

    /// A tensor map, and so many coordinates.
    fn tensor_place(&mut self, rank: &str, place: &Operand) -> Result<(R, Box<[R]>), String> {
        let rank: usize = rank.parse().map_err(|_| "an unknown rank")?;
        let Operand::Address(map, 0, rest) = place else {
            return Err("a tensor map expected".into());
        };
        let (map, at) = (self.value(map, Class::Double)?, self.words(rest.first())?);
        if at.len() != rank {
            return Err(format!("{rank} coordinates expected"));
        }
        Ok((map, at.into()))
    }
}
