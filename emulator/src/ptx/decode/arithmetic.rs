//! What a lane does by itself with its registers. Opcodes are compared in full: a modifier that is not listed is
//! not ignored.

use super::super::op::{Compare, K32, K64, KP, Op, R};
use super::super::text::Operand;
use super::together::special;
use super::{Class, Decoder, expect};

/// The class of a type of so many bits.
fn class(kind: &str) -> Result<Class, String> {
    Ok(match kind {
        "b16" | "u16" | "s16" => Class::Half,
        "b32" | "u32" | "s32" | "f32" => Class::Word,
        "b64" | "u64" | "s64" => Class::Double,
        "pred" => Class::Predicate,
        _ => return Err(format!("an unknown type {kind}")),
    })
}

impl Decoder<'_> {
    pub(super) fn mov(&mut self, kind: &str, operands: &[Operand]) -> Result<Op, String> {
        expect(operands, 2)?;
        let class = class(kind)?;
        match (&operands[0], &operands[1]) {
            (Operand::List(list), a) => {
                let [lo, hi] = &list[..] else { return Err("a list of 2 expected".into()) };
                let part = self.half_of(class)?;
                let (lo, hi) = (self.part_to(lo, part)?, self.part_to(hi, part)?);
                let a = self.value(a, class)?;
                return Ok(match class {
                    Class::Double => Op::Split64 { lo, hi, a },
                    _ => Op::Split32 { lo, hi, a },
                });
            }
            (_, Operand::List(list)) => {
                let [lo, hi] = &list[..] else { return Err("a list of 2 expected".into()) };
                let part = self.half_of(class)?;
                let d = self.to(operands, class)?;
                let (lo, hi) = (self.value(lo, part)?, self.value(hi, part)?);
                return Ok(match class {
                    Class::Double => Op::Join64 { d, lo, hi },
                    _ => Op::Join32 { d, lo, hi },
                });
            }
            (_, Operand::Name(name)) => {
                let offset = self.params.get(name).map(|offset| *offset as u32);
                if class == Class::Double && name == "%clock64" {
                    return Ok(Op::Clock { d: self.to(operands, class)? });
                }
                if class == Class::Word
                    && let Some(what) = special(name)
                {
                    return Ok(Op::Special { d: self.to(operands, class)?, what });
                }
                if let (Class::Double, Some(offset)) = (class, offset) {
                    return Ok(Op::ParamAddress { d: self.to(operands, class)?, offset });
                }
            }
            _ => {}
        }
        let (d, a) = (self.to(operands, class)?, self.read(operands, 1, class)?);
        Ok(match class {
            Class::Half | Class::Word => Op::Mov32 { d, a },
            Class::Double => Op::Mov64 { d, a },
            Class::Predicate => Op::MovP { d, a },
        })
    }

    /// What half of a register of this class is.
    fn half_of(&self, class: Class) -> Result<Class, String> {
        match class {
            Class::Word => Ok(Class::Half),
            Class::Double => Ok(Class::Word),
            _ => Err("it has no halves".into()),
        }
    }

    /// A register for half of another, or `_`.
    fn part_to(&self, operand: &Operand, class: Class) -> Result<R, String> {
        match operand {
            Operand::Name(name) if name == "_" => Ok(R::SINK),
            one => self.to(std::slice::from_ref(one), class),
        }
    }

    pub(super) fn selp(&mut self, kind: &str, operands: &[Operand]) -> Result<Op, String> {
        expect(operands, 4)?;
        let class = class(kind)?;
        let d = self.to(operands, class)?;
        let (a, b) = (self.read(operands, 1, class)?, self.read(operands, 2, class)?);
        let p = self.predicate(operands, 3)?;
        match class {
            Class::Half | Class::Word => Ok(Op::Select32 { d, a, b, p }),
            Class::Double => Ok(Op::Select64 { d, a, b, p }),
            Class::Predicate => Err("predicates are not selected".into()),
        }
    }

    pub(super) fn setp(
        &mut self,
        how: &str,
        kind: &str,
        operands: &[Operand],
    ) -> Result<Op, String> {
        expect(operands, 3)?;
        let how = match (how, kind.as_bytes().first()) {
            ("eq", Some(b'u' | b's' | b'b')) => Compare::Eq,
            ("ne", Some(b'u' | b's' | b'b')) => Compare::Ne,
            ("lt", Some(b'u')) => Compare::LtU,
            ("le", Some(b'u')) => Compare::LeU,
            ("gt", Some(b'u')) => Compare::GtU,
            ("ge", Some(b'u')) => Compare::GeU,
            ("lt", Some(b's')) => Compare::LtS,
            ("le", Some(b's')) => Compare::LeS,
            ("gt", Some(b's')) => Compare::GtS,
            ("ge", Some(b's')) => Compare::GeS,
            ("eq", Some(b'f')) => Compare::EqF,
            ("ne", Some(b'f')) => Compare::NeF,
            ("lt", Some(b'f')) => Compare::LtF,
            ("le", Some(b'f')) => Compare::LeF,
            ("gt", Some(b'f')) => Compare::GtF,
            ("ge", Some(b'f')) => Compare::GeF,
            ("equ", Some(b'f')) => Compare::EquF,
            ("neu", Some(b'f')) => Compare::NeuF,
            ("ltu", Some(b'f')) => Compare::LtuF,
            ("leu", Some(b'f')) => Compare::LeuF,
            ("gtu", Some(b'f')) => Compare::GtuF,
            ("geu", Some(b'f')) => Compare::GeuF,
            ("nan", Some(b'f')) => Compare::NanF,
            ("num", Some(b'f')) => Compare::NumF,
            _ => return Err("an unknown comparison".into()),
        };
        let signed = matches!(how, Compare::LtS | Compare::LeS | Compare::GtS | Compare::GeS);
        let (class, d) = (class(kind)?, self.to(operands, Class::Predicate)?);
        let (a, b) = (self.read(operands, 1, class)?, self.read(operands, 2, class)?);
        match class {
            Class::Double => Ok(Op::SetP64 { how, d, a, b }),
            Class::Half if signed => Err("16 signed bits are not compared".into()),
            _ => Ok(Op::SetP32 { how, d, a, b }),
        }
    }

    pub(super) fn cvt(&mut self, opcode: &str, operands: &[Operand]) -> Result<Op, String> {
        use Class::{Double, Half, Word};
        // A source may be wider than its type.
        let wide = match operands.get(1) {
            Some(Operand::Name(name)) => matches!(self.register(name), Ok((Double, _))),
            _ => false,
        };
        if wide && matches!(opcode, "cvt.u64.u32" | "cvt.s64.s32") {
            expect(operands, 2)?;
            let k = if opcode == "cvt.u64.u32" { K64::Low32U } else { K64::Low32S };
            let (d, a) = (self.to(operands, Double)?, self.read(operands, 1, Double)?);
            return Ok(Op::Alu64 { k, d, a, b: a, c: a });
        }
        let two = matches!(opcode, "cvt.rn.bf16x2.f32" | "cvt.rn.f16x2.f32");
        expect(operands, if two { 3 } else { 2 })?;
        let (to, from) = match opcode {
            "cvt.u64.u32" | "cvt.s64.s32" | "cvt.rzi.u64.f32" => (Double, Word),
            "cvt.u64.u16" => (Double, Half),
            "cvt.u32.u64" | "cvt.rn.f32.u64" | "cvt.rn.f32.s64" => (Word, Double),
            "cvt.u16.u64" => (Half, Double),
            "cvt.u16.u32" | "cvt.rn.f16.f32" => (Half, Word),
            "cvt.u32.u16" | "cvt.f32.f16" | "cvt.rn.f32.u16" => (Word, Half),
            _ => (Word, Word),
        };
        let (d, a) = (self.to(operands, to)?, self.read(operands, 1, from)?);
        let b = if two { self.word(operands, 2)? } else { a };
        let k = match opcode {
            "cvt.u64.u32" | "cvt.u64.u16" => return Ok(Op::Widen { signed: false, d, a }),
            "cvt.s64.s32" => return Ok(Op::Widen { signed: true, d, a }),
            "cvt.u32.u64" => return Ok(Op::Narrow { half: false, d, a }),
            "cvt.u16.u64" => return Ok(Op::Narrow { half: true, d, a }),
            "cvt.rzi.u64.f32" => return Ok(Op::U64FromF32 { d, a }),
            "cvt.rn.f32.u64" => return Ok(Op::F32From64 { signed: false, d, a }),
            "cvt.rn.f32.s64" => return Ok(Op::F32From64 { signed: true, d, a }),
            "cvt.u16.u32" | "cvt.u32.u16" => K32::Low16,
            "cvt.s32.s8" => K32::SignExtend8,
            "cvt.f32.f16" => K32::HalfToF32,
            "cvt.rn.f16.f32" => K32::F32ToHalf,
            "cvt.rn.bf16x2.f32" => K32::PackBf16,
            "cvt.rn.f16x2.f32" => K32::PackF16,
            "cvt.rna.tf32.f32" => K32::Tf32,
            "cvt.rn.f32.s32" => K32::F32FromS,
            "cvt.rn.f32.u32" => K32::F32FromU,
            "cvt.rn.f32.u16" => K32::F32FromU16,
            "cvt.rzi.u32.f32" => K32::F32ToU,
            _ => return Err("an unknown conversion".into()),
        };
        Ok(Op::Alu32 { k, narrow: false, d, a, b, c: a })
    }

    pub(super) fn arithmetic(&mut self, opcode: &str, operands: &[Operand]) -> Result<Op, String> {
        if let Some((k, count)) = on_predicates(opcode) {
            expect(operands, 1 + count)?;
            let (d, a) = (self.to(operands, Class::Predicate)?, self.predicate(operands, 1)?);
            let b = self.predicate(operands, count)?;
            return Ok(Op::Logic { k, d, a, b });
        }
        if let Some((k, count)) = on_words(opcode) {
            expect(operands, 1 + count)?;
            let half = opcode.ends_with("16");
            let from = if half { Class::Half } else { Class::Word };
            // The product of two 16-bit numbers fills a word; a 16-bit shift has a 32-bit count.
            let wide = opcode == "mul.wide.u16";
            let second = if matches!(k, K32::Shl | K32::ShrU) { Class::Word } else { from };
            let d = self.to(operands, if wide { Class::Word } else { from })?;
            let a = self.read(operands, 1, from)?;
            let b = if count > 1 { self.read(operands, 2, second)? } else { a };
            let c = if count > 2 { self.read(operands, 3, from)? } else { a };
            return Ok(Op::Alu32 { k, narrow: half && !wide, d, a, b, c });
        }
        if let Some((k, count)) = on_doubles(opcode) {
            expect(operands, 1 + count)?;
            let (d, a) = (self.to(operands, Class::Double)?, self.double(operands, 1)?);
            let b = if count > 1 { self.double(operands, 2)? } else { a };
            let c = if count > 2 { self.double(operands, 3)? } else { a };
            return Ok(Op::Alu64 { k, d, a, b, c });
        }
        match opcode {
            "mul.wide.u32" | "mul.wide.s32" => {
                expect(operands, 3)?;
                let (a, b) = (self.word(operands, 1)?, self.word(operands, 2)?);
                let (signed, d) = (opcode.ends_with("s32"), self.to(operands, Class::Double)?);
                Ok(Op::MulWide { signed, d, a, b })
            }
            "shl.b64" | "shr.u64" | "shr.s64" => {
                expect(operands, 3)?;
                let (a, b) = (self.double(operands, 1)?, self.word(operands, 2)?);
                let d = self.to(operands, Class::Double)?;
                let (left, signed) = (opcode == "shl.b64", opcode == "shr.s64");
                Ok(Op::Shift64 { left, signed, d, a, b })
            }
            "bfe.u64" => {
                expect(operands, 4)?;
                let (d, a) = (self.to(operands, Class::Double)?, self.double(operands, 1)?);
                Ok(Op::BfeU64 { d, a, b: self.word(operands, 2)?, c: self.word(operands, 3)? })
            }
            _ => Err("an unknown instruction".into()),
        }
    }
}

/// What an instruction on predicates does, and how many it reads.
fn on_predicates(opcode: &str) -> Option<(KP, usize)> {
    Some(match opcode {
        "and.pred" => (KP::And, 2),
        "or.pred" => (KP::Or, 2),
        "xor.pred" => (KP::Xor, 2),
        "not.pred" => (KP::Not, 1),
        _ => return None,
    })
}

/// What an instruction on 32 bits (or 16, where its name says so) does, and how many registers it reads.
fn on_words(opcode: &str) -> Option<(K32, usize)> {
    Some(match opcode {
        "add.s32" | "add.u32" | "add.s16" | "add.u16" => (K32::Add, 2),
        "sub.s32" | "sub.u32" | "sub.s16" | "sub.u16" => (K32::Sub, 2),
        "mul.lo.s32" | "mul.lo.u32" | "mul.lo.s16" | "mul.lo.u16" | "mul.wide.u16" => (K32::Mul, 2),
        "mad.lo.s32" | "mad.lo.u32" | "mad.lo.s16" | "mad.lo.u16" => (K32::Mad, 3),
        "mul.hi.u32" => (K32::MulHiU, 2),
        "mul.hi.u16" => (K32::MulHiU16, 2),
        "div.u32" | "div.u16" => (K32::Div, 2),
        "rem.u32" | "rem.u16" => (K32::Rem, 2),
        "and.b32" | "and.b16" => (K32::And, 2),
        "or.b32" | "or.b16" => (K32::Or, 2),
        "xor.b32" | "xor.b16" => (K32::Xor, 2),
        "not.b32" | "not.b16" => (K32::Not, 1),
        "neg.s32" | "neg.s16" => (K32::Neg, 1),
        "shl.b32" | "shl.b16" => (K32::Shl, 2),
        "shr.u32" | "shr.b32" | "shr.u16" | "shr.b16" => (K32::ShrU, 2),
        "shr.s32" => (K32::ShrS, 2),
        "min.u32" | "min.u16" => (K32::MinU, 2),
        "max.u32" | "max.u16" => (K32::MaxU, 2),
        "min.s32" => (K32::MinS, 2),
        "max.s32" => (K32::MaxS, 2),
        "popc.b32" => (K32::Popc, 1),
        "clz.b32" => (K32::Clz, 1),
        "bfind.shiftamt.u32" => (K32::BfindShift, 1),
        "bfe.u32" => (K32::BfeU, 3),
        "bfe.s32" => (K32::BfeS, 3),
        "prmt.b32" => (K32::Prmt, 3),
        "shf.l.wrap.b32" => (K32::ShfLeft, 3),
        "shf.r.wrap.b32" => (K32::ShfRight, 3),
        "dp4a.s32.s32" => (K32::Dp4aSS, 3),
        "dp4a.u32.s32" => (K32::Dp4aUS, 3),
        "add.f32" | "add.rn.f32" => (K32::AddF, 2),
        "sub.f32" | "sub.rn.f32" => (K32::SubF, 2),
        "mul.f32" | "mul.rn.f32" => (K32::MulF, 2),
        "fma.rn.f32" => (K32::FmaF, 3),
        "div.rn.f32" => (K32::DivF, 2),
        "rcp.rn.f32" => (K32::RcpF, 1),
        "sqrt.rn.f32" => (K32::SqrtF, 1),
        "abs.f32" => (K32::AbsF, 1),
        "neg.f32" => (K32::NegF, 1),
        "min.f32" => (K32::MinF, 2),
        "max.f32" => (K32::MaxF, 2),
        "max.NaN.f32" => (K32::MaxNanF, 2),
        "max.NaN.bf16x2" => (K32::MaxNanBf16x2, 2),
        "fma.rn.bf16x2" => (K32::FmaBf16x2, 3),
        "fma.rn.relu.bf16x2" => (K32::FmaReluBf16x2, 3),
        "max.NaN.f16x2" => (K32::MaxNanF16x2, 2),
        "rcp.approx.ftz.f32" => (K32::RcpApprox, 1),
        "rsqrt.approx.ftz.f32" => (K32::RsqrtApprox, 1),
        "ex2.approx.ftz.f32" => (K32::Ex2Approx, 1),
        _ => return None,
    })
}

/// What an instruction on 64 bits does, and how many registers of 64 bits it reads.
fn on_doubles(opcode: &str) -> Option<(K64, usize)> {
    Some(match opcode {
        "add.s64" | "add.u64" => (K64::Add, 2),
        "sub.s64" | "sub.u64" => (K64::Sub, 2),
        "mul.lo.s64" | "mul.lo.u64" => (K64::Mul, 2),
        "mad.lo.s64" | "mad.lo.u64" => (K64::Mad, 3),
        "mul.hi.u64" => (K64::MulHiU, 2),
        "div.u64" => (K64::Div, 2),
        "and.b64" => (K64::And, 2),
        "or.b64" => (K64::Or, 2),
        "xor.b64" => (K64::Xor, 2),
        "not.b64" => (K64::Not, 1),
        "neg.s64" => (K64::Neg, 1),
        "min.u64" => (K64::MinU, 2),
        "max.u64" => (K64::MaxU, 2),
        _ => return None,
    })
}
