//! Items of a body to instructions.

mod access;

use std::collections::HashMap;

use super::Kernel;
use super::op::{Address, Compare, Inst, K32, K64, KP, Op, R};
use super::text::{Item, Operand, items};
use access::special;

/// Classes of registers.
const WORD: usize = 0;
const DOUBLE: usize = 1;
const PREDICATE: usize = 2;

/// Names of a scope: `%r` with a count, or a single one (count 0).
type Scope = HashMap<String, (usize, u32, u32)>;

struct Decoder {
    scopes: Vec<Scope>,
    /// Registers of each class that open scopes take.
    taken: Vec<[usize; 3]>,
    used: [usize; 3],
    most: [usize; 3],
    words: HashMap<u32, u32>,
    doubles: HashMap<u64, u32>,
    params: HashMap<String, usize>,
    labels: HashMap<String, u32>,
    tables: HashMap<String, Vec<String>>,
    /// Branches whose target is not known yet: labels are local to the scope they stand in.
    code: Vec<Inst>,
    pending: Vec<(usize, String)>,
    text: Vec<String>,
}

/// Decodes the entry with this head and body.
pub(super) fn kernel(head: &str, body: &str) -> Result<Kernel, String> {
    let (params, param_bytes, names) = parameters(head)?;
    let mut decoder = Decoder {
        scopes: vec![Scope::new()],
        taken: vec![[0; 3]],
        used: [0; 3],
        most: [0; 3],
        words: HashMap::new(),
        doubles: HashMap::new(),
        params: names,
        labels: HashMap::new(),
        tables: HashMap::new(),
        code: Vec::new(),
        pending: Vec::new(),
        text: Vec::new(),
    };
    decoder.body(&items(body)?)?;
    let waits = decoder.code.iter().any(|inst| matches!(inst.op, Op::DependencyWait));
    let mut words = vec![0; decoder.words.len()];
    decoder.words.iter().for_each(|(value, at)| words[*at as usize] = *value);
    let mut doubles = vec![0; decoder.doubles.len()];
    decoder.doubles.iter().for_each(|(value, at)| doubles[*at as usize] = *value);
    Ok(Kernel {
        name: head.split(['(', ' ', '\n']).next().unwrap_or("").to_owned(),
        param_bytes,
        params,
        static_shared: 0,
        reqntid: triple(head, ".reqntid")?,
        cluster: triple(head, ".reqnctapercluster")?,
        code: decoder.code,
        text: decoder.text,
        registers: decoder.most,
        constants: (words, doubles, vec![false, true]),
        waits,
    })
}

/// Offsets and bytes of the parameters, bytes of all, and offsets by name.
type Parameters = (Vec<(usize, usize)>, usize, HashMap<String, usize>);

fn parameters(head: &str) -> Result<Parameters, String> {
    let inner = head.split_once('(').and_then(|(_, rest)| rest.split_once(')')).map_or("", |p| p.0);
    let (mut places, mut end, mut names) = (Vec::new(), 0_usize, HashMap::new());
    for param in inner.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let words: Vec<&str> = param.split_whitespace().collect();
        let mut align = None;
        let mut unit = 0;
        let mut words = words.into_iter();
        let mut name = "";
        while let Some(word) = words.next() {
            match word {
                ".param" => {}
                ".align" => align = words.next().and_then(|n| n.parse::<usize>().ok()),
                ".b8" | ".u8" => unit = 1,
                ".b16" | ".u16" => unit = 2,
                ".b32" | ".u32" | ".f32" => unit = 4,
                ".b64" | ".u64" | ".f64" => unit = 8,
                other if other.starts_with('.') => return Err(format!("a parameter with {other}")),
                other => name = other,
            }
        }
        let (name, count) = match name.split_once('[') {
            Some((name, count)) => (
                name,
                count.trim_end_matches(']').parse::<usize>().map_err(|_| "a parameter's size")?,
            ),
            None => (name, 1),
        };
        let align = align.unwrap_or(unit).max(1);
        let offset = end.next_multiple_of(align);
        places.push((offset, unit * count));
        names.insert(name.to_owned(), offset);
        end = offset + unit * count;
    }
    Ok((places, end, names))
}

fn triple(head: &str, directive: &str) -> Result<Option<[u32; 3]>, String> {
    let Some((_, rest)) = head.split_once(directive) else { return Ok(None) };
    let line = rest.lines().next().unwrap_or("");
    let mut out = [1; 3];
    for (place, number) in out.iter_mut().zip(line.split(',')) {
        *place = number.trim().parse().map_err(|_| format!("{directive} {line}"))?;
    }
    Ok(Some(out))
}

impl Decoder {
    fn body(&mut self, items: &[Item]) -> Result<(), String> {
        // Labels in scopes (`again:`) come more than once: they get the scope's number.
        let mut opened = 0;
        let mut path = vec![0];
        for item in items {
            match item {
                Item::Open => {
                    opened += 1;
                    path.push(opened);
                    self.scopes.push(Scope::new());
                    self.taken.push(self.used);
                }
                Item::Close => {
                    path.pop();
                    self.scopes.pop();
                    self.used = self.taken.pop().ok_or("a brace too many")?;
                }
                Item::Label(name) => {
                    let name = scoped(name, &path);
                    self.labels.insert(name, self.code.len() as u32);
                }
                Item::Directive(text) => self.directive(text)?,
                Item::Instruction { guard, opcode, operands, text } => {
                    let guard = match guard {
                        Some((name, negated)) => Some((self.register(name, PREDICATE)?, *negated)),
                        None => None,
                    };
                    if let Some(Operand::Name(label)) =
                        operands.first().filter(|_| opcode.starts_with("bra"))
                    {
                        self.pending.push((self.code.len(), scoped(label, &path)));
                    }
                    let op = self.op(opcode, operands).map_err(|why| format!("{why}: {text}"))?;
                    self.code.push(Inst { guard, op });
                    self.text.push(text.clone());
                }
            }
        }
        self.code.push(Inst { guard: None, op: Op::Exit });
        self.text.push("(end)".into());
        for (at, label) in std::mem::take(&mut self.pending) {
            let target = *self.labels.get(&label).ok_or_else(|| format!("no label {label}"))?;
            if let Op::Branch { to, .. } = &mut self.code[at].op {
                *to = target;
            }
        }
        // Tables are named by what `op` left in their place.
        for inst in &mut self.code {
            if let Op::BranchTable { to, .. } = &mut inst.op {
                let name = format!("$L_brx_{}", to[0]);
                let labels = self.tables.get(&name).ok_or_else(|| format!("no table {name}"))?;
                *to = labels
                    .iter()
                    .map(|label| {
                        self.labels.get(label).copied().ok_or_else(|| format!("no label {label}"))
                    })
                    .collect::<Result<_, _>>()?;
            }
        }
        Ok(())
    }

    fn directive(&mut self, text: &str) -> Result<(), String> {
        if let Some(rest) = text.strip_prefix(".reg") {
            let mut words = rest.split_whitespace();
            let class = match words.next() {
                Some(".pred") => PREDICATE,
                Some(".b16" | ".u16" | ".s16" | ".b32" | ".u32" | ".s32" | ".f32") => WORD,
                Some(".b64" | ".u64" | ".s64") => DOUBLE,
                other => return Err(format!("a register of {other:?}")),
            };
            for name in words.collect::<String>().split(',') {
                let (name, count) = match name.split_once('<') {
                    Some((name, count)) => (
                        name,
                        count
                            .trim_end_matches('>')
                            .parse::<u32>()
                            .map_err(|_| "a register count")?,
                    ),
                    None => (name, 0),
                };
                let base = self.used[class] as u32;
                self.used[class] += count.max(1) as usize;
                self.most[class] = self.most[class].max(self.used[class]);
                let scope = self.scopes.last_mut().ok_or("no scope")?;
                scope.insert(name.to_owned(), (class, base, count));
            }
            return Ok(());
        }
        if let Some(labels) = text.strip_prefix(".branchtargets") {
            // Its label came just before and is the only one here that is no place in the code.
            let here = self.code.len() as u32;
            let name = self
                .labels
                .iter()
                .find(|(name, at)| **at == here && name.starts_with("$L_brx_"))
                .map(|(name, _)| name.clone())
                .ok_or("a table without a name")?;
            self.labels.remove(&name);
            self.tables
                .insert(name, labels.split(',').map(|label| label.trim().to_owned()).collect());
            return Ok(());
        }
        if text.starts_with(".pragma") {
            return Ok(());
        }
        Err(format!("directive {text}"))
    }

    /// The register of this name and class.
    fn register(&self, name: &str, class: usize) -> Result<R, String> {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (prefix, number) = name.split_at(name.len() - digits);
        for scope in self.scopes.iter().rev() {
            let found = match scope.get(name) {
                Some((c, base, 0)) => Some((*c, *base)),
                _ => scope.get(prefix).filter(|_| digits > 0).and_then(|(c, base, count)| {
                    let n: u32 = number.parse().ok()?;
                    (n < *count).then_some((*c, base + n))
                }),
            };
            if let Some((c, at)) = found {
                return if c == class {
                    Ok(R(at))
                } else {
                    Err(format!("{name} has another size"))
                };
            }
        }
        Err(format!("no register {name}"))
    }

    fn word_constant(&mut self, value: u32) -> R {
        let next = self.words.len() as u32;
        R(*self.words.entry(value).or_insert(next) | R::CONSTANT)
    }

    fn double_constant(&mut self, value: u64) -> R {
        let next = self.doubles.len() as u32;
        R(*self.doubles.entry(value).or_insert(next) | R::CONSTANT)
    }

    /// An operand of this class.
    fn value(&mut self, operand: &Operand, class: usize) -> Result<R, String> {
        match operand {
            Operand::Name(name) if name == "_" => Ok(R::SINK),
            Operand::Name(name) if name == "bitnet_dynamic_smem" => match class {
                WORD => Ok(self.word_constant(0)),
                _ => Ok(self.double_constant(0)),
            },
            Operand::Name(name) => self.register(name, class),
            Operand::Number(value) => Ok(match class {
                WORD => self.word_constant(*value as u32),
                DOUBLE => self.double_constant(*value),
                _ => R(u32::from(*value != 0) | R::CONSTANT),
            }),
            other => Err(format!("operand {other:?}")),
        }
    }

    fn word(&mut self, operands: &[Operand], at: usize) -> Result<R, String> {
        let operand = operands.get(at).ok_or("too few operands")?.clone();
        self.value(&operand, WORD)
    }

    fn double(&mut self, operands: &[Operand], at: usize) -> Result<R, String> {
        let operand = operands.get(at).ok_or("too few operands")?.clone();
        self.value(&operand, DOUBLE)
    }

    fn predicate(&mut self, operands: &[Operand], at: usize) -> Result<R, String> {
        let operand = operands.get(at).ok_or("too few operands")?.clone();
        self.value(&operand, PREDICATE)
    }

    fn class(&self, operand: &Operand) -> usize {
        match operand {
            Operand::Name(name) if self.register(name, DOUBLE).is_ok() => DOUBLE,
            _ => WORD,
        }
    }

    fn address(&mut self, operands: &[Operand], at: usize) -> Result<Address, String> {
        let Some(Operand::Address(base, offset, _)) = operands.get(at) else {
            return Err("an address expected".into());
        };
        if let Operand::Name(name) = &**base
            && let Some(place) = self.params.get(name)
        {
            return Ok(Address { base: None, offset: offset + *place as i64 });
        }
        let base = (**base).clone();
        if let Operand::Number(place) = base {
            return Ok(Address { base: None, offset: offset + place as i64 });
        }
        let wide = self.class(&base) == DOUBLE;
        let register = self.value(&base, if wide { DOUBLE } else { WORD })?;
        Ok(Address { base: Some((register, wide)), offset: *offset })
    }

    /// Registers of a list, or the one that stands alone; the rest is the sink.
    fn some<const N: usize>(
        &mut self,
        operand: &Operand,
        class: usize,
    ) -> Result<([R; N], u8), String> {
        let mut out = [R::SINK; N];
        match operand {
            Operand::List(list) if list.len() <= N => {
                for (place, operand) in out.iter_mut().zip(list) {
                    *place = self.value(operand, class)?;
                }
                Ok((out, list.len() as u8))
            }
            Operand::List(_) => Err("too many registers".into()),
            one => {
                out[0] = self.value(one, class)?;
                Ok((out, 1))
            }
        }
    }

    fn op(&mut self, opcode: &str, operands: &[Operand]) -> Result<Op, String> {
        let parts: Vec<&str> = opcode.split('.').collect();
        let last = *parts.last().unwrap_or(&"");
        Ok(match parts[0] {
            "mov" => self.mov(last, operands)?,
            "ld" | "ldu" => self.load(&parts, operands)?,
            "st" => self.store(&parts, operands)?,
            "setp" => self.setp(parts[1], last, operands)?,
            "selp" => {
                let p = self.predicate(operands, 3)?;
                if last == "b64" {
                    let (d, a, b) = (
                        self.double(operands, 0)?,
                        self.double(operands, 1)?,
                        self.double(operands, 2)?,
                    );
                    Op::Select64 { d, a, b, p }
                } else {
                    let (d, a, b) =
                        (self.word(operands, 0)?, self.word(operands, 1)?, self.word(operands, 2)?);
                    Op::Select32 { d, a, b, p }
                }
            }
            "cvt" => self.cvt(opcode, operands)?,
            "cvta" => match parts[1] {
                "shared" => {
                    Op::GenericShared { d: self.double(operands, 0)?, a: self.double(operands, 1)? }
                }
                "param" => Op::Mov64 { d: self.double(operands, 0)?, a: self.double(operands, 1)? },
                _ => return Err("an unknown space".into()),
            },
            "bra" => Op::Branch { to: 0, uniform: last == "uni" },
            "brx" => {
                let index = self.word(operands, 0)?;
                let Some(Operand::Name(table)) = operands.get(1) else {
                    return Err("no table".into());
                };
                let number =
                    table.strip_prefix("$L_brx_").and_then(|n| n.parse().ok()).ok_or("no table")?;
                Op::BranchTable { index, to: Box::new([number]) }
            }
            "ret" | "exit" => Op::Exit,
            "trap" => Op::Trap,
            "fence" | "membar" | "prefetch" | "setmaxnreg" => Op::Nothing,
            "griddepcontrol" if last == "wait" => Op::DependencyWait,
            "griddepcontrol" => Op::Nothing,
            _ => match self.collective(&parts, opcode, operands)? {
                Some(op) => op,
                None => self.arithmetic(&parts, last, operands)?,
            },
        })
    }

    fn mov(&mut self, last: &str, operands: &[Operand]) -> Result<Op, String> {
        if last == "pred" {
            return Ok(Op::MovP {
                d: self.predicate(operands, 0)?,
                a: self.predicate(operands, 1)?,
            });
        }
        if let Some(Operand::Name(name)) = operands.get(1)
            && let Some(what) = special(name)
        {
            return Ok(Op::Special { d: self.word(operands, 0)?, what });
        }
        let wide = last.ends_with("64");
        if let Some(Operand::Name(name)) = operands.get(1)
            && let Some(offset) = self.params.get(name)
        {
            return Ok(Op::ParamAddress { offset: *offset as u32, d: self.double(operands, 0)? });
        }
        match (operands.first(), operands.get(1)) {
            (Some(Operand::List(list)), Some(_)) if wide => {
                let a = self.double(operands, 1)?;
                Ok(Op::Split64 { lo: self.word(list, 0)?, hi: self.word(list, 1)?, a })
            }
            (Some(Operand::List(list)), Some(_)) => {
                let a = self.word(operands, 1)?;
                Ok(Op::Split32 { lo: self.word(list, 0)?, hi: self.word(list, 1)?, a })
            }
            (Some(_), Some(Operand::List(list))) if wide => {
                let d = self.double(operands, 0)?;
                Ok(Op::Join64 { d, lo: self.word(list, 0)?, hi: self.word(list, 1)? })
            }
            (Some(_), Some(Operand::List(list))) => {
                let d = self.word(operands, 0)?;
                Ok(Op::Join32 { d, lo: self.word(list, 0)?, hi: self.word(list, 1)? })
            }
            _ if wide => {
                Ok(Op::Mov64 { d: self.double(operands, 0)?, a: self.double(operands, 1)? })
            }
            _ if last.ends_with("16") => {
                let (d, a) = (self.word(operands, 0)?, self.word(operands, 1)?);
                Ok(Op::Alu32 { k: K32::Low16, narrow: false, d, a, b: a, c: a })
            }
            _ => Ok(Op::Mov32 { d: self.word(operands, 0)?, a: self.word(operands, 1)? }),
        }
    }

    fn setp(&mut self, how: &str, kind: &str, operands: &[Operand]) -> Result<Op, String> {
        let float = kind == "f32";
        let signed = kind.starts_with('s');
        let how = match (how, float, signed) {
            ("eq", false, _) => Compare::Eq,
            ("ne", false, _) => Compare::Ne,
            ("lt", false, false) => Compare::LtU,
            ("le", false, false) => Compare::LeU,
            ("gt", false, false) => Compare::GtU,
            ("ge", false, false) => Compare::GeU,
            ("lt", false, true) => Compare::LtS,
            ("le", false, true) => Compare::LeS,
            ("gt", false, true) => Compare::GtS,
            ("ge", false, true) => Compare::GeS,
            ("eq", true, _) => Compare::EqF,
            ("ne", true, _) => Compare::NeF,
            ("lt", true, _) => Compare::LtF,
            ("le", true, _) => Compare::LeF,
            ("gt", true, _) => Compare::GtF,
            ("ge", true, _) => Compare::GeF,
            ("equ", true, _) => Compare::EquF,
            ("neu", true, _) => Compare::NeuF,
            ("ltu", true, _) => Compare::LtuF,
            ("leu", true, _) => Compare::LeuF,
            ("gtu", true, _) => Compare::GtuF,
            ("geu", true, _) => Compare::GeuF,
            ("nan", true, _) => Compare::NanF,
            ("num", true, _) => Compare::NumF,
            _ => return Err("an unknown comparison".into()),
        };
        let d = self.predicate(operands, 0)?;
        if kind.ends_with("64") {
            return Ok(Op::SetP64 {
                how,
                d,
                a: self.double(operands, 1)?,
                b: self.double(operands, 2)?,
            });
        }
        if kind.ends_with("16") && signed {
            return Err("16 signed bits are not compared".into());
        }
        Ok(Op::SetP32 { how, d, a: self.word(operands, 1)?, b: self.word(operands, 2)? })
    }

    fn cvt(&mut self, opcode: &str, operands: &[Operand]) -> Result<Op, String> {
        let alu = |k, narrow, d, a, b| Op::Alu32 { k, narrow, d, a, b, c: a };
        Ok(match opcode {
            "cvt.u64.u32" | "cvt.u64.u16" => Op::Widen {
                signed: false,
                d: self.double(operands, 0)?,
                a: self.word(operands, 1)?,
            },
            "cvt.s64.s32" => {
                Op::Widen { signed: true, d: self.double(operands, 0)?, a: self.word(operands, 1)? }
            }
            "cvt.u32.u64" => {
                Op::Narrow { half: false, d: self.word(operands, 0)?, a: self.double(operands, 1)? }
            }
            "cvt.u16.u64" => {
                Op::Narrow { half: true, d: self.word(operands, 0)?, a: self.double(operands, 1)? }
            }
            "cvt.rn.f32.u64" | "cvt.rn.f32.s64" => {
                let signed = opcode.ends_with("s64");
                Op::F32From64 { signed, d: self.word(operands, 0)?, a: self.double(operands, 1)? }
            }
            _ => {
                let k = match opcode {
                    "cvt.u16.u32" | "cvt.u32.u16" => K32::Low16,
                    "cvt.s32.s8" => K32::SignExtend8,
                    "cvt.f32.f16" => K32::HalfToF32,
                    "cvt.rn.f16.f32" => K32::F32ToHalf,
                    "cvt.rn.bf16x2.f32" => K32::PackBf16,
                    "cvt.rn.f16x2.f32" => K32::PackF16,
                    "cvt.rna.tf32.f32" => K32::Tf32,
                    "cvt.rn.f32.s32" => K32::F32FromS,
                    "cvt.rn.f32.u32" => K32::F32FromU,
                    "cvt.rzi.u32.f32" => K32::F32ToU,
                    _ => return Err("an unknown conversion".into()),
                };
                let (d, a) = (self.word(operands, 0)?, self.word(operands, 1)?);
                let b = if operands.len() > 2 { self.word(operands, 2)? } else { a };
                alu(k, false, d, a, b)
            }
        })
    }

    fn arithmetic(
        &mut self,
        parts: &[&str],
        last: &str,
        operands: &[Operand],
    ) -> Result<Op, String> {
        let name = parts[0];
        if last == "pred" {
            let k = match name {
                "and" => KP::And,
                "or" => KP::Or,
                "xor" => KP::Xor,
                "not" => KP::Not,
                _ => return Err("unknown".into()),
            };
            let (d, a) = (self.predicate(operands, 0)?, self.predicate(operands, 1)?);
            let b = if operands.len() > 2 { self.predicate(operands, 2)? } else { a };
            return Ok(Op::Logic { k, d, a, b });
        }
        if name == "mul" && parts[1] == "wide" && last != "u16" {
            let (d, a, b) =
                (self.double(operands, 0)?, self.word(operands, 1)?, self.word(operands, 2)?);
            return Ok(Op::MulWide { signed: last == "s32", d, a, b });
        }
        if last.ends_with("64") {
            return self.arithmetic64(parts, operands);
        }
        let signed = last.starts_with('s');
        let k = match (name, last) {
            ("add", "f32") => K32::AddF,
            ("sub", "f32") => K32::SubF,
            ("mul", "f32") => K32::MulF,
            ("fma", "f32") => K32::FmaF,
            ("div", "f32") => K32::DivF,
            ("sqrt", "f32") => K32::SqrtF,
            ("rcp", "f32") if parts[1] == "rn" => K32::RcpF,
            ("rcp", "f32") => K32::RcpApprox,
            ("rsqrt", "f32") => K32::RsqrtApprox,
            ("ex2", "f32") => K32::Ex2Approx,
            ("abs", "f32") => K32::AbsF,
            ("neg", "f32") => K32::NegF,
            ("min", "f32") => K32::MinF,
            ("max", "f32") if parts[1] == "NaN" => K32::MaxNanF,
            ("max", "f32") => K32::MaxF,
            ("max", "bf16x2") if parts[1] == "NaN" => K32::MaxNanBf16x2,
            ("max", "f16x2") if parts[1] == "NaN" => K32::MaxNanF16x2,
            ("add", _) => K32::Add,
            ("sub", _) => K32::Sub,
            ("mul", _) if parts[1] == "hi" && !signed => K32::MulHiU,
            ("mul", _) if parts[1] == "lo" || last == "u16" => K32::Mul,
            ("mad", _) if parts[1] == "lo" => K32::Mad,
            ("div", _) if !signed => K32::Div,
            ("rem", _) if !signed => K32::Rem,
            ("and", _) => K32::And,
            ("or", _) => K32::Or,
            ("xor", _) => K32::Xor,
            ("not", _) => K32::Not,
            ("neg", _) => K32::Neg,
            ("shl", _) => K32::Shl,
            ("shr", "s16") => return Err("unknown".into()),
            ("shr", _) if signed => K32::ShrS,
            ("shr", _) => K32::ShrU,
            ("min" | "max", "s16") => return Err("unknown".into()),
            ("min", _) if signed => K32::MinS,
            ("min", _) => K32::MinU,
            ("max", _) if signed => K32::MaxS,
            ("max", _) => K32::MaxU,
            ("popc", _) => K32::Popc,
            ("clz", _) => K32::Clz,
            ("bfind", "u32") if parts[1] == "shiftamt" => K32::BfindShift,
            ("bfe", "u32") => K32::BfeU,
            ("bfe", "s32") => K32::BfeS,
            ("prmt", "b32") => K32::Prmt,
            ("dp4a", "s32") if parts[1] == "s32" => K32::Dp4aSS,
            ("dp4a", "s32") => K32::Dp4aUS,
            _ => return Err("an unknown instruction".into()),
        };
        // A product of two 16-bit numbers that is wide fills its register.
        let narrow = last.ends_with("16") && parts.get(1) != Some(&"wide");
        let mut at = |i: usize| -> Result<R, String> {
            match operands.get(i.min(operands.len() - 1)) {
                // 16-bit registers have zeros above.
                Some(Operand::Number(value)) if last.ends_with("16") => {
                    Ok(self.word_constant(*value as u32 & 0xffff))
                }
                _ => self.word(operands, i.min(operands.len() - 1)),
            }
        };
        let (d, a, b, c) = (at(0)?, at(1)?, at(2)?, at(3)?);
        Ok(Op::Alu32 { k, narrow, d, a, b, c })
    }

    fn arithmetic64(&mut self, parts: &[&str], operands: &[Operand]) -> Result<Op, String> {
        let d = self.double(operands, 0)?;
        let a = self.double(operands, 1)?;
        match parts[0] {
            "shl" | "shr" => {
                if parts[1] == "s64" {
                    return Err("unknown".into());
                }
                return Ok(Op::Shift64 {
                    left: parts[0] == "shl",
                    d,
                    a,
                    b: self.word(operands, 2)?,
                });
            }
            "bfe" if parts[1] == "u64" => {
                return Ok(Op::BfeU64 {
                    d,
                    a,
                    b: self.word(operands, 2)?,
                    c: self.word(operands, 3)?,
                });
            }
            _ => {}
        }
        let k = match (parts[0], parts[1]) {
            ("add", _) => K64::Add,
            ("sub", _) => K64::Sub,
            ("mul", "lo") => K64::Mul,
            ("mul", "hi") => K64::MulHiU,
            ("mad", "lo") => K64::Mad,
            ("div", "u64") => K64::Div,
            ("and", _) => K64::And,
            ("or", _) => K64::Or,
            ("xor", _) => K64::Xor,
            ("not", _) => K64::Not,
            ("min", "u64") => K64::MinU,
            ("max", "u64") => K64::MaxU,
            _ => return Err("an unknown instruction".into()),
        };
        let last = operands.len() - 1;
        let (b, c) = (self.double(operands, 2.min(last))?, self.double(operands, 3.min(last))?);
        Ok(Op::Alu64 { k, d, a, b, c })
    }
}

/// A label's name in the scope that it stands in.
fn scoped(name: &str, path: &[usize]) -> String {
    if name.starts_with('$') { name.to_owned() } else { format!("{name}@{}", path[path.len() - 1]) }
}
