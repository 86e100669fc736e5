//! Items of a body to instructions.

mod access;
mod arithmetic;
mod head;
mod places;
mod together;

use std::collections::{HashMap, HashSet};

use super::Kernel;
use super::op::{Address, Inst, Op, R};
use super::text::{Item, Operand, items};

/// Most registers of a class.
const REGISTERS: u32 = 1 << 16;

/// What a register holds. 16 bits are the low ones of a word, with zeros above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Half,
    Word,
    Double,
    Predicate,
}

impl Class {
    /// Which of [`Kernel::registers`] it is one of.
    fn file(self) -> usize {
        match self {
            Self::Half | Self::Word => 0,
            Self::Double => 1,
            Self::Predicate => 2,
        }
    }
}

/// What stands between two braces.
struct Scope {
    number: usize,
    /// By name: class, first register, and how many (`%r<5>`), or 0 for a single one.
    registers: HashMap<String, (Class, u32, u32)>,
    /// Registers that were taken when it began.
    before: [u32; 3],
}

/// A label: the number of the scope that it stands in, and its name.
type Label = (usize, String);

struct Decoder<'a> {
    /// Names of shared memory whose size a launch says.
    shared: &'a [String],
    params: HashMap<String, usize>,
    scopes: Vec<Scope>,
    /// Of the registers of the outermost scope that are no predicates; `None`: as they are numbered.
    places: Option<HashMap<&'a str, u32>>,
    used: [u32; 3],
    most: [u32; 3],
    words: HashMap<u32, u32>,
    doubles: HashMap<u64, u32>,
    labels: HashMap<Label, u32>,
    tables: HashMap<Label, Vec<String>>,
    /// Branches whose labels come later: the instruction, the label or table, the scopes that it may stand in.
    pending: Vec<(usize, String, Vec<usize>)>,
    code: Vec<Inst>,
    text: Vec<String>,
}

/// Decodes the entry with this head and body. `shared`: names of shared memory that a launch sizes.
pub(super) fn kernel(head: &str, body: &str, shared: &[String]) -> Result<Kernel, String> {
    let params = head::parameters(head)?;
    let items = items(body)?;
    let (places, used) = placed(&items).unzip();
    let used = used.unwrap_or_default();
    let mut decoder = Decoder {
        shared,
        params: params.offsets,
        scopes: vec![Scope { number: 0, registers: HashMap::new(), before: [0; 3] }],
        places,
        used,
        most: used,
        words: HashMap::new(),
        doubles: HashMap::new(),
        labels: HashMap::new(),
        tables: HashMap::new(),
        pending: Vec::new(),
        code: Vec::new(),
        text: Vec::new(),
    };
    decoder.body(&items)?;
    let waits = decoder.code.iter().any(|inst| matches!(inst.op, Op::DependencyWait));
    let mut words = vec![[0; 32]; decoder.words.len()];
    decoder.words.iter().for_each(|(value, at)| words[*at as usize] = [*value; 32]);
    let mut doubles = vec![[0; 32]; decoder.doubles.len()];
    decoder.doubles.iter().for_each(|(value, at)| doubles[*at as usize] = [*value; 32]);
    Ok(Kernel {
        name: name(head).to_owned(),
        param_bytes: params.bytes,
        params: params.places,
        reqntid: head::triple(head, ".reqntid ")?,
        cluster: head::triple(head, ".reqnctapercluster ")?,
        code: decoder.code,
        text: decoder.text,
        registers: decoder.most.map(|n| n as usize),
        constants: (words, doubles),
        waits,
    })
}

/// What follows `.reg`: a class, and names with how many there are (`%r<5>`), or 0 for a single one.
fn declared(text: &str) -> Option<(Class, Vec<(&str, u32)>)> {
    let (kind, names) = text.trim_start().split_once(char::is_whitespace)?;
    let class = match kind {
        ".pred" => Class::Predicate,
        ".b16" | ".u16" | ".s16" => Class::Half,
        ".b32" | ".u32" | ".s32" | ".f32" => Class::Word,
        ".b64" | ".u64" | ".s64" => Class::Double,
        _ => return None,
    };
    let names = names.split(',').map(|name| match name.trim().split_once('<') {
        Some((name, count)) => Some((name, count.strip_suffix('>')?.parse().ok()?)),
        None => Some((name.trim(), 0)),
    });
    Some((class, names.collect::<Option<_>>()?))
}

/// The name of a register without its number.
fn prefix(name: &str) -> &str {
    name.trim_end_matches(|c: char| c.is_ascii_digit())
}

/// Places of the registers of the outermost scope that are no predicates, and how many. `None` where an inner scope has such
/// names too.
fn placed(items: &[Item]) -> Option<(HashMap<&str, u32>, [u32; 3])> {
    let (mut depth, mut outer, mut inner) = (0, HashMap::new(), HashSet::new());
    for item in items {
        match item {
            Item::Open => depth += 1,
            Item::Close => depth -= 1,
            Item::Directive(text) => {
                let declared = text.strip_prefix(".reg").and_then(declared);
                for (class, name) in declared
                    .iter()
                    .flat_map(|(class, names)| names.iter().map(move |(name, _)| (*class, *name)))
                {
                    if depth > 0 {
                        inner.insert(prefix(name));
                    } else if class != Class::Predicate {
                        outer.insert(name, class.file());
                    }
                }
            }
            _ => {}
        }
    }
    if outer.keys().any(|name| inner.contains(prefix(name))) {
        return None;
    }
    let file = |name: &str| outer.get(name).or_else(|| outer.get(prefix(name))).copied();
    Some(places::places(items, file))
}

/// The name that a head begins with.
pub(super) fn name(head: &str) -> &str {
    head.split(|c: char| c == '(' || c.is_whitespace()).next().unwrap_or("")
}

impl Decoder<'_> {
    fn body(&mut self, items: &[Item]) -> Result<(), String> {
        let mut opened = 0;
        let mut label = None;
        for item in items {
            match item {
                Item::Open => {
                    opened += 1;
                    let (number, before) = (opened, self.used);
                    self.scopes.push(Scope { number, registers: HashMap::new(), before });
                }
                Item::Close => {
                    let scope = self.scopes.pop().filter(|scope| scope.number > 0);
                    self.used = scope.ok_or("a brace too many")?.before;
                }
                Item::Label(name) => {
                    let key = (self.scope().number, name.clone());
                    if self.labels.insert(key, self.code.len() as u32).is_some() {
                        return Err(format!("label {name} comes twice"));
                    }
                    label = Some(name);
                    continue;
                }
                Item::Directive(text) => self.directive(text, label)?,
                Item::Instruction { guard, opcode, operands, text } => {
                    let op = self
                        .instruction(guard, opcode, operands)
                        .map_err(|why| format!("{why}: {text}"))?;
                    self.code.push(op);
                    self.text.push(text.clone());
                }
            }
            label = None;
        }
        self.code.push(Inst { guard: None, op: Op::Exit });
        self.text.push("(end)".into());
        self.link()
    }

    /// The innermost scope.
    fn scope(&mut self) -> &mut Scope {
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    /// Gives branches their targets.
    fn link(&mut self) -> Result<(), String> {
        let place = |name: &String, path: &[usize]| {
            let mut found = path.iter().rev().map(|scope| self.labels.get(&(*scope, name.clone())));
            found.find_map(|at| at.copied()).ok_or_else(|| format!("no label {name}"))
        };
        for (at, name, path) in &self.pending {
            match &mut self.code[*at].op {
                Op::Branch { to, .. } => *to = place(name, path)?,
                Op::BranchTable { to, .. } => {
                    let mut found =
                        path.iter().rev().map(|scope| self.tables.get(&(*scope, name.clone())));
                    let labels = found.find_map(|table| table);
                    let labels = labels.ok_or_else(|| format!("no table {name}"))?.iter();
                    *to = labels.map(|label| place(label, path)).collect::<Result<_, _>>()?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn directive(&mut self, text: &str, label: Option<&String>) -> Result<(), String> {
        if let Some(rest) = text.strip_prefix(".reg") {
            return self.registers(rest).ok_or_else(|| format!("registers {text}"));
        }
        if let Some(labels) = text.strip_prefix(".branchtargets") {
            let name = label.ok_or("a table without a name")?.clone();
            let labels = labels.split(',').map(|label| label.trim().to_owned()).collect();
            let key = (self.scope().number, name);
            self.tables.insert(key, labels);
            return Ok(());
        }
        if text.starts_with(".pragma") { Ok(()) } else { Err(format!("directive {text}")) }
    }

    /// Declares what follows `.reg`.
    fn registers(&mut self, text: &str) -> Option<()> {
        let (class, names) = declared(text)?;
        for (name, count) in names {
            let first = self.used[class.file()];
            if count > REGISTERS || first > REGISTERS {
                return None;
            }
            if self.scopes.len() == 1 && class != Class::Predicate && self.places.is_some() {
                self.scope().registers.insert(name.to_owned(), (class, first, count));
                continue;
            }
            let used = first + u32::max(count, 1);
            self.used[class.file()] = used;
            self.most[class.file()] = self.most[class.file()].max(used);
            self.scope().registers.insert(name.to_owned(), (class, first, count));
        }
        Some(())
    }

    /// The register of this name.
    fn register(&self, name: &str) -> Result<(Class, R), String> {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = name[prefix.len()..].parse::<u32>().ok();
        for scope in self.scopes.iter().rev() {
            let places = self.places.as_ref().filter(|_| scope.number == 0);
            let place = places.and_then(|places| places.get(name));
            if let Some((class, first, 0)) = scope.registers.get(name) {
                return Ok((*class, R(*place.unwrap_or(first))));
            }
            if let (Some((class, first, count)), Some(n)) = (scope.registers.get(prefix), number)
                && n < *count
            {
                return Ok((*class, R(place.copied().unwrap_or(first + n))));
            }
        }
        Err(format!("no register {name}"))
    }

    /// The register of this name, which has to be of this class.
    fn register_of(&self, name: &str, class: Class) -> Result<R, String> {
        match self.register(name)? {
            (found, r) if found == class => Ok(r),
            _ => Err(format!("{name} has another size")),
        }
    }

    fn word_constant(&mut self, value: u32) -> R {
        let next = self.words.len() as u32;
        R(*self.words.entry(value).or_insert(next) | R::CONSTANT)
    }

    fn double_constant(&mut self, value: u64) -> R {
        let next = self.doubles.len() as u32;
        R(*self.doubles.entry(value).or_insert(next) | R::CONSTANT)
    }

    /// An operand that is read.
    fn value(&mut self, operand: &Operand, class: Class) -> Result<R, String> {
        let number = match operand {
            Operand::Name(name) if self.shared.contains(name) => 0,
            Operand::Name(name) => return self.register_of(name, class),
            Operand::Number(value) => *value,
            _ => return Err("a register or a number expected".into()),
        };
        let bits = match class {
            Class::Half => 16,
            Class::Word => 32,
            Class::Double => return Ok(self.double_constant(number)),
            Class::Predicate => return Ok(R(u32::from(number != 0) | R::CONSTANT)),
        };
        let signed = number as i64;
        if signed >= 1 << bits || signed < -1 << (bits - 1) {
            return Err(format!("{signed} has more than {bits} bits"));
        }
        Ok(self.word_constant(number as u32 & (u32::MAX >> (32 - bits))))
    }

    /// Operand `at`, which is read.
    fn read(&mut self, operands: &[Operand], at: usize, class: Class) -> Result<R, String> {
        self.value(operands.get(at).ok_or("too few operands")?, class)
    }

    fn word(&mut self, operands: &[Operand], at: usize) -> Result<R, String> {
        self.read(operands, at, Class::Word)
    }

    fn double(&mut self, operands: &[Operand], at: usize) -> Result<R, String> {
        self.read(operands, at, Class::Double)
    }

    fn predicate(&mut self, operands: &[Operand], at: usize) -> Result<R, String> {
        self.read(operands, at, Class::Predicate)
    }

    /// The first operand, which is written.
    fn to(&self, operands: &[Operand], class: Class) -> Result<R, String> {
        match operands.first() {
            Some(Operand::Name(name)) => self.register_of(name, class),
            _ => Err("a register expected".into()),
        }
    }

    fn address(&mut self, operands: &[Operand], at: usize) -> Result<Address, String> {
        let Some(Operand::Address(base, offset, _)) = operands.get(at) else {
            return Err("an address expected".into());
        };
        let fixed = match &**base {
            Operand::Name(name) if self.shared.contains(name) => 0,
            Operand::Name(name) => match self.params.get(name) {
                Some(place) => *place as i64,
                None => {
                    let base = match self.register(name)? {
                        (Class::Word, r) => (r, false),
                        (Class::Double, r) => (r, true),
                        _ => return Err(format!("{name} holds no address")),
                    };
                    return Ok(Address { base: Some(base), offset: *offset });
                }
            },
            Operand::Number(place) => *place as i64,
            _ => return Err("an address expected".into()),
        };
        Ok(Address { base: None, offset: fixed.wrapping_add(*offset) })
    }

    /// `N` registers or numbers in braces.
    fn list<const N: usize>(&mut self, operands: &[Operand], at: usize) -> Result<[R; N], String> {
        let list = self.words(operands.get(at))?;
        list.try_into().map_err(|_| format!("a list of {N} expected"))
    }

    /// The registers and numbers in braces.
    fn words(&mut self, operand: Option<&Operand>) -> Result<Vec<R>, String> {
        let Some(Operand::List(list)) = operand else { return Err("a list expected".into()) };
        list.iter().map(|operand| self.value(operand, Class::Word)).collect()
    }

    /// Registers in braces, which are written.
    fn to_words(&self, operand: Option<&Operand>) -> Result<Vec<R>, String> {
        let Some(Operand::List(list)) = operand else { return Err("a list expected".into()) };
        list.iter().map(|operand| self.to(std::slice::from_ref(operand), Class::Word)).collect()
    }

    fn instruction(
        &mut self,
        guard: &Option<(String, bool)>,
        opcode: &str,
        operands: &[Operand],
    ) -> Result<Inst, String> {
        let guard = match guard {
            Some((name, negated)) => Some((self.register_of(name, Class::Predicate)?, *negated)),
            None => None,
        };
        let parts: Vec<&str> = opcode.split('.').collect();
        let op = match parts[..] {
            ["bra"] | ["bra", "uni"] => {
                self.jumps(operands.first())?;
                expect(operands, 1)?;
                Op::Branch { to: 0, uniform: parts.len() > 1 }
            }
            ["brx", "idx"] => {
                self.jumps(operands.get(1))?;
                expect(operands, 2)?;
                Op::BranchTable { index: self.word(operands, 0)?, to: Box::default() }
            }
            ["ld", ref how @ .., kind] => self.load(how, kind, operands)?,
            ["st", "async", ..] => self.store_async(opcode, operands)?,
            ["st", ref how @ .., kind] => self.store(how, kind, operands)?,
            ["mov", kind] => self.mov(kind, operands)?,
            ["setp", how, kind] => self.setp(how, kind, operands)?,
            ["selp", kind] => self.selp(kind, operands)?,
            ["cvt", ..] => self.cvt(opcode, operands)?,
            ["cp", "async", "bulk", "prefetch", ..] => Op::Nothing,
            ["cp", ..] => self.copy(opcode, operands)?,
            ["mbarrier", ..] => self.mbarrier(opcode, operands)?,
            ["mma", ..] => self.mma(opcode, operands)?,
            ["wgmma", ..] => self.wgmma(opcode, &parts, operands)?,
            ["fence", "mbarrier_init", ..] => Op::InitFence,
            ["fence", "proxy", "async", ..] => Op::ProxyFence,
            // A cache policy: what its bits are is nobody's matter.
            ["createpolicy", "fractional", "L2::evict_first", "b64"] => {
                expect(operands, 1)?;
                Op::Mov64 { d: self.to(operands, Class::Double)?, a: self.double_constant(1) }
            }
            ["fence" | "membar" | "prefetch" | "setmaxnreg", ..] => Op::Nothing,
            _ => match self.together(opcode, operands)? {
                Some(op) => op,
                None => self.arithmetic(opcode, operands)?,
            },
        };
        Ok(Inst { guard, op })
    }

    /// The next instruction jumps to this label, or to one of this table.
    fn jumps(&mut self, label: Option<&Operand>) -> Result<(), String> {
        let Some(Operand::Name(label)) = label else { return Err("a label expected".into()) };
        let path = self.scopes.iter().map(|scope| scope.number).collect();
        self.pending.push((self.code.len(), label.clone(), path));
        Ok(())
    }
}

/// Refuses another number of operands.
fn expect(operands: &[Operand], count: usize) -> Result<(), String> {
    if operands.len() == count { Ok(()) } else { Err(format!("{count} operands expected")) }
}

/// Operand `at`, which is a small number.
fn number(operands: &[Operand], at: usize) -> Result<u32, String> {
    match operands.get(at) {
        Some(Operand::Number(value)) if *value <= 0xffff => Ok(*value as u32),
        _ => Err("a small number expected".into()),
    }
}
