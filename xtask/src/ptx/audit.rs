//! `cargo xtask audit`: compares PTX with the contract, and what ptxas makes of it with the rules.
//!
//! On the text: every kernel of the contract that the level can have and no other, its parameter
//! bytes and block, no call, no local memory, no generic access to shared memory, the recorded
//! number of convergent operations. On the machine code, for every GPU that a level serves: it
//! assembles without a warning, with zero stack and zero spills.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use contract::launch::KernelInfo;

use super::convergence::{self, Expected};
use super::levels::{self, Level};
use super::manifest::Manifest;
use super::ptxas::{Assembled, Effort, Ptxas};
use super::text::{Entry, Module, words};
use crate::{kernels, workspace};

/// `cargo xtask audit`
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Levels to audit, separated by commas [default: all]
    #[arg(long, value_name = "LIST")]
    arch: Option<String>,
}

/// Audits the committed PTX and prints the register table.
pub(crate) fn run(options: &Options) -> Result<()> {
    let levels = levels::select(options.arch.as_deref())?;
    let dir = Manifest::unpack(&levels)?;
    let report = audit(&levels, &dir, kernels::kernels(), Counts::Recorded, Gpus::All)?;
    print!("{}", report.table());
    println!("{}", report.verdict()?);
    Ok(())
}

/// Audits all committed PTX, the machine code of each kernel's text for one GPU, that of the highest level that has it: the
/// rest was seen when the manifest took its hash, which [`super::build::check`] compares.
///
/// # Errors
/// What is wrong.
pub(crate) fn committed() -> Result<String> {
    let levels: Vec<_> = levels::LEVELS.iter().collect();
    let dir = Manifest::unpack(&levels)?;
    audit(&levels, &dir, kernels::kernels(), Counts::Recorded, Gpus::Own)?.verdict()
}

/// What the counts of convergent operations are compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counts {
    /// `convergence.json`.
    Recorded,
    /// Nothing: they are to be recorded.
    New,
}

/// The GPUs that a level is assembled for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gpus {
    /// All that it serves.
    All,
    /// The one that it is named by, and kernels whose text a higher level has too only with the least effort: what their
    /// machine code needs was seen there, that their instructions are of this level's ISA was not.
    Own,
}

/// A file to assemble, and how many kernels it has.
struct Part {
    level: &'static Level,
    gpu: &'static str,
    path: PathBuf,
    kernels: usize,
    effort: Effort,
}

/// Lines of PTX of a part: some seconds of work, so that two cores end at the same time.
const PART_LINES: usize = 40_000;

/// What an audit found.
#[derive(Default)]
pub(crate) struct Report {
    /// Convergent operations by level and kernel.
    pub(crate) counts: Expected,
    /// Level or GPU, and what is wrong there.
    problems: Vec<(String, String)>,
    /// GPU -> symbol -> registers.
    registers: Vec<(&'static str, BTreeMap<String, u32>)>,
}

/// Audits the files of `levels` in `dir`.
pub(crate) fn audit(
    levels: &[&'static Level],
    dir: &Path,
    kernels: &[KernelInfo],
    counted: Counts,
    gpus: Gpus,
) -> Result<Report> {
    let expected = convergence::read()?;
    let mut report = Report::default();
    let mut parts = Vec::new();
    let mut modules: Vec<Module> = Vec::new();
    // From the highest level on: it has the most kernels.
    for &level in levels.iter().rev() {
        let path = dir.join(format!("{}.ptx", level.name));
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("no PTX at {}; try: cargo xtask build-ptx", path.display()))?;
        let mut module = Module::parse(&text).with_context(|| workspace::relative(&path))?;
        let mut problems = read(level, &module, kernels);
        let counts =
            module.entries.iter().map(|e| (e.name.clone(), convergence::count(e))).collect();
        if counted == Counts::Recorded {
            problems.extend(convergence::differences(level.name, &counts, &expected));
        }
        report.problems.extend(problems.into_iter().map(|what| (level.name.to_owned(), what)));
        report.counts.insert(level.name.to_owned(), counts);
        match gpus {
            Gpus::All => parts.extend(level.serves.iter().rev().map(|gpu| Part {
                level,
                gpu,
                path: path.clone(),
                kernels: module.entries.len(),
                effort: Effort::Full,
            })),
            Gpus::Own => {
                parts.extend(own(level, &mut module, &modules, dir)?);
                modules.push(module);
            }
        }
    }
    for (part, assembled) in assemble(parts)? {
        match assembled {
            Err(why) => report.problems.push((on(part.level, part.gpu), format!("{why:#}"))),
            Ok(found) => report.take(&part, &found),
        }
    }
    Ok(report)
}

/// What the GPU of `level` assembles: in full the kernels that no module of `above` has, which alone stay in `module`.
fn own(
    level: &'static Level,
    module: &mut Module,
    above: &[Module],
    dir: &Path,
) -> Result<Vec<Part>> {
    let known = above.iter().flat_map(|other| module.shared_with(other));
    let known: BTreeSet<String> = known.map(str::to_owned).collect();
    let is_known = |entry: &&Entry| known.contains(&entry.name);
    let (old, new): (Vec<_>, Vec<_>) = module.entries.iter().partition(is_known);
    let mut parts = cut(level, &module.with(&new), dir, Effort::Full)?;
    parts.extend(cut(level, &module.with(&old), dir, Effort::Least)?);
    module.entries.retain(|entry| !known.contains(&entry.name));
    Ok(parts)
}

/// Writes the kernels of `module` into files of about [`PART_LINES`] lines.
fn cut(level: &'static Level, module: &Module, dir: &Path, effort: Effort) -> Result<Vec<Part>> {
    let mut entries: Vec<&Entry> = module.entries.iter().collect();
    let mut parts = Vec::new();
    while !entries.is_empty() {
        let mut lines = 0;
        let room = |entry: &&Entry| {
            let fits = lines < PART_LINES;
            lines += entry.body.len();
            fits
        };
        let kernels = entries.iter().copied().take_while(room).count();
        let rest = entries.split_off(kernels);
        let path = dir.join(format!("{}-{effort:?}-{}.ptx", level.name, parts.len()));
        std::fs::write(&path, module.with(&entries).to_string())?;
        parts.push(Part { level, gpu: level.name, path, kernels, effort });
        entries = rest;
    }
    Ok(parts)
}

/// Assembles files, two at a time, the first ones first.
fn assemble(parts: Vec<Part>) -> Result<Vec<(Part, Result<Assembled>)>> {
    let ptxas = Ptxas::install().context("the audit needs ptxas")?;
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(part) = parts.get(at) else { break };
                    let result = ptxas.assemble(&part.path, part.gpu, part.effort);
                    done.lock().unwrap_or_else(PoisonError::into_inner).insert(at, result);
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    // The lowest level first.
    Ok(parts.into_iter().zip(done.into_values()).rev().collect())
}

impl Report {
    fn take(&mut self, part: &Part, found: &Assembled) {
        let mut say = |what: String| self.problems.push((on(part.level, part.gpu), what));
        found.complaints.iter().cloned().for_each(&mut say);
        if found.usage.len() != part.kernels {
            let (spoken, has) = (found.usage.len(), part.kernels);
            say(format!("ptxas spoke of {spoken} kernels, the file has {has}"));
        }
        if part.effort == Effort::Least {
            return;
        }
        for (symbol, usage) in &found.usage {
            if usage.stack_bytes + usage.spill_bytes > 0 {
                say(format!(
                    "{symbol}: {} bytes of stack, {} bytes of spills; both must be 0",
                    usage.stack_bytes, usage.spill_bytes
                ));
            }
        }
        let registers = found.usage.iter().map(|(s, usage)| (s.clone(), usage.registers));
        match self.registers.iter_mut().find(|(gpu, _)| *gpu == part.gpu) {
            Some((_, all)) => all.extend(registers),
            None => self.registers.push((part.gpu, registers.collect())),
        }
    }

    /// Registers of a thread: kernels down, GPUs across.
    pub(crate) fn table(&self) -> String {
        let symbols: BTreeSet<&str> =
            self.registers.iter().flat_map(|(_, used)| used.keys().map(String::as_str)).collect();
        let width = symbols.iter().map(|s| s.len()).max().unwrap_or(0).max("registers".len());
        let mut out = format!("{:width$}", "registers");
        for (gpu, _) in &self.registers {
            let _ = write!(out, " {:>4}", gpu.trim_start_matches("sm_"));
        }
        out.push('\n');
        for symbol in symbols {
            let _ = write!(out, "{symbol:width$}");
            for (_, used) in &self.registers {
                let cell = used.get(symbol).map_or("-".into(), u32::to_string);
                let _ = write!(out, " {cell:>4}");
            }
            out.push('\n');
        }
        out
    }

    /// One line when all is well.
    pub(crate) fn summary(&self) -> String {
        let kernels: usize = self.counts.values().map(BTreeMap::len).sum();
        let assembled: usize = self.registers.iter().map(|(_, used)| used.len()).sum();
        format!(
            "{kernels} kernels in {} levels; {assembled} assembled for {} GPUs: no stack, no spills",
            self.counts.len(),
            self.registers.len()
        )
    }

    /// What was audited, or an error that lists every problem.
    pub(crate) fn verdict(&self) -> Result<String> {
        if !self.problems.is_empty() {
            // The same problem is usually there in every level: say it once.
            let mut said: Vec<(&str, Vec<&str>)> = Vec::new();
            for (place, what) in &self.problems {
                match said.iter_mut().find(|(other, _)| other == what) {
                    Some((_, places)) => places.push(place),
                    None => said.push((what, vec![place])),
                }
            }
            let lines: Vec<_> = said
                .iter()
                .map(|(what, places)| format!("{what} ({})", places.join(", ")))
                .collect();
            bail!(
                "the PTX audit failed:\n  {}\n(counts that changed on purpose: \
                 cargo xtask build-ptx --record)",
                lines.join("\n  ")
            );
        }
        Ok(format!("PTX audit: {}", self.summary()))
    }
}

fn on(level: &Level, gpu: &str) -> String {
    if level.name == gpu { gpu.to_owned() } else { format!("{} on {gpu}", level.name) }
}

/// Problems that stand in the text.
fn read(level: &Level, module: &Module, kernels: &[KernelInfo]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut say = |what: String| problems.push(what);
    for (directive, wanted) in [(".version", level.isa_version()), (".target", level.name.into())] {
        let found = module.directive(directive).unwrap_or("nothing");
        if found != wanted {
            say(format!("{directive} is {found}, not {wanted}"));
        }
    }
    for func in &module.funcs {
        say(format!("`{func}` was not inlined, or is not there at all"));
    }
    let mut missing = Vec::new();
    for kernel in kernels {
        let symbol = kernel.spec.symbol;
        match (module.entries.iter().find(|e| e.name == symbol), level.absent(kernel)) {
            (Some(entry), None) => against_contract(entry, kernel).into_iter().for_each(&mut say),
            (Some(_), Some(why)) => say(format!("{symbol} {why}, and yet is here")),
            (None, None) => missing.push(symbol),
            (None, Some(_)) => {}
        }
    }
    if !missing.is_empty() {
        say(format!("in the contract, and not here: {}", missing.join(", ")));
    }
    for entry in &module.entries {
        if !kernels.iter().any(|kernel| kernel.spec.symbol == entry.name) {
            say(format!("{} is not in the contract", entry.name));
        }
        let shared = shared_symbols(module.top.iter().chain(&entry.body));
        let pointers = generic_pointers(entry).into_iter().chain(generic_shared(entry, &shared));
        for problem in forbidden(entry).into_iter().chain(pointers) {
            say(format!("{}: {problem}", entry.name));
        }
    }
    problems
}

fn against_contract(entry: &Entry, kernel: &KernelInfo) -> Vec<String> {
    let mut problems = Vec::new();
    let symbol = kernel.spec.symbol;
    let wanted = kernel.args_bytes;
    if entry.params.len() != 1 || entry.params[0] as usize != wanted {
        problems.push(format!(
            "{symbol}: parameters of {:?} bytes, the contract has one of {wanted}",
            entry.params
        ));
    }
    let [x, y, z] = kernel.spec.block;
    let bounds = format!(".reqntid {x}, {y}, {z}");
    if !entry.directives.contains(&bounds) {
        problems.push(format!("{symbol}: `{bounds}` is missing"));
    }
    problems
}

/// Calls and local memory: none has a place in a kernel.
fn forbidden(entry: &Entry) -> Vec<String> {
    let mut problems = Vec::new();
    for line in &entry.body {
        let calls = convergence::opcodes(line).any(|op| op == "call" || op.starts_with("call."));
        let what = if calls {
            "a call"
        } else if line.contains(".local") {
            "local memory"
        } else {
            continue;
        };
        problems.push(format!("{what}: `{}`", line.trim()));
        if problems.len() == 3 {
            break; // one array makes dozens of such lines
        }
    }
    problems
}

/// Names of variables in shared memory.
fn shared_symbols<'a>(lines: impl Iterator<Item = &'a String>) -> BTreeSet<&'a str> {
    lines
        .filter(|line| line.contains(".shared") && line.contains(".align"))
        .filter_map(|line| words(line.split(['[', '=', ';']).next()?).last())
        .collect()
}

/// Generic pointers to shared memory that anything but `ldmatrix` reads. That one is an intrinsic on a
/// generic pointer, and LLVM does not always find the state space; where it does not, the address is
/// a true generic one, made by `cvta`.
fn generic_pointers(entry: &Entry) -> Vec<String> {
    let instructions = || entry.body.iter().flat_map(|line| line.split(';'));
    let made = instructions().filter(|part| part.contains("cvta.shared"));
    made.filter(|part| {
        let target =
            split_target(part.split_once("cvta.shared.u64").map_or("", |(_, rest)| rest)).0;
        let target = target.trim();
        !instructions().any(|part| {
            convergence::opcodes(part).any(|opcode| opcode.starts_with("ldmatrix."))
                && words(part).any(|word| word == target)
        })
    })
    .map(|part| format!("a generic pointer to shared memory: `{}`", part.trim()))
    .collect()
}

/// Accesses without a state space through an address that comes from a shared variable: an address
/// within shared memory is not a generic address, and such an access goes elsewhere.
fn generic_shared(entry: &Entry, shared: &BTreeSet<&str>) -> Vec<String> {
    let instructions: Vec<(&str, &str)> = entry
        .body
        .iter()
        .flat_map(|line| line.split(';'))
        .filter_map(|part| {
            let opcode = convergence::opcodes(part).next()?;
            Some((opcode, &part[part.find(opcode)? + opcode.len()..]))
        })
        .collect();
    let mut derived = shared.clone();
    loop {
        let before = derived.len();
        for &(opcode, operands) in &instructions {
            // What is loaded is data, wherever it was loaded from; a store and a comparison make no
            // address either.
            if ["ld.", "atom.", "st.", "setp."].iter().any(|kind| opcode.starts_with(kind)) {
                continue;
            }
            let (targets, sources) = split_target(operands);
            if words(sources).any(|word| derived.contains(word)) {
                derived.extend(words(targets).filter(|word| word.starts_with('%')));
            }
        }
        if derived.len() == before {
            break;
        }
    }
    instructions
        .iter()
        .filter(|(opcode, _)| !opcode.contains(".shared") && !opcode.starts_with("ldmatrix."))
        .filter(|(_, operands)| {
            operands
                .split('[')
                .skip(1)
                .filter_map(|rest| rest.split(']').next())
                .any(|address| words(address).any(|word| derived.contains(word)))
        })
        .map(|(opcode, operands)| format!("generic access to shared memory: `{opcode}{operands}`"))
        .collect()
}

/// The first operand (one register, or several in braces) and the rest.
fn split_target(operands: &str) -> (&str, &str) {
    let close = if operands.trim_start().starts_with('{') { '}' } else { ',' };
    operands.split_once(close).unwrap_or((operands, ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::text::tests::SAMPLE;
    use contract::launch::LaunchSpec;

    fn kernel(symbol: &'static str, args_bytes: usize) -> KernelInfo {
        KernelInfo { family: "k", spec: LaunchSpec::new(symbol, 256), args_bytes }
    }

    /// Problems of a `scale` kernel with these lines added to its body.
    fn problems(lines: &str) -> Vec<String> {
        let text = SAMPLE.split(".visible .entry add").next().unwrap();
        let text = text.replace("\tret;", &format!("{lines}\n\tret;"));
        let mut module = Module::parse(&text).unwrap();
        module.finish(&[kernel("scale", 24)], 800);
        read(&levels::LEVELS[0], &module, &[kernel("scale", 24)])
    }

    #[test]
    fn a_good_kernel_has_no_problems() {
        assert_eq!(problems(""), Vec::<String>::new());
        let shared = "mov.u32 %r20, dyn_smem;\nadd.s32 %r21, %r20, 4;\nld.shared.b32 %r22, [%r21];\n\
                      st.b32 [%rd2], %r22;\ncvta.to.global.u64 %rd3, %rd4;";
        assert_eq!(problems(shared), Vec::<String>::new());
        let matrix = "cvta.shared.u64 %rd7, %rd8;\n\
                      ldmatrix.sync.aligned.m8n8.x1.b16 {%r22}, [%rd7];";
        assert_eq!(problems(matrix), Vec::<String>::new());
    }

    #[test]
    fn each_forbidden_thing_is_seen() {
        for line in [
            ".local .align 4 .b8 __local_depot0[64];",
            "st.local.b32 [%SP], 0;",
            "call.uni (retval0), helper, (param0);",
            "cvta.shared.u64 %rd7, %rd8;",
            "mov.u64 %rd20, dyn_smem;\nadd.s64 %rd21, %rd20, 8;\nst.b32 [%rd21+4], %r1;",
            "mov.u32 %r20, dyn_smem;\ncvt.u64.u32 %rd21, %r20;\nld.v2.b32 {%r1, %r2}, [%rd21];",
            "@%p1 atom.add.u32 %r1, [dyn_smem], 1;",
        ] {
            assert_eq!(problems(line).len(), 1, "{line}");
        }
    }

    #[test]
    fn the_contract_decides_what_is_there() {
        let level = &levels::LEVELS[0];
        let mut module = Module::parse(SAMPLE).unwrap();
        module.finish(&[kernel("scale", 24), kernel("add", 12)], 800);
        let found = |kernels: &[KernelInfo]| read(level, &module, kernels);
        // `add` has two parameters.
        assert_eq!(found(&[kernel("scale", 24), kernel("add", 12)]).len(), 1);
        // Wrong bytes; and `add` unknown.
        assert_eq!(found(&[kernel("scale", 32)]).len(), 2);
        let mut newer = kernel("scale", 24);
        newer.spec.min_sm = 80;
        // Here against its own rule; and `add` unknown.
        assert_eq!(found(&[newer]).len(), 2);
        assert!(found(&[kernel("gone", 8)]).iter().any(|p| p.ends_with("not here: gone")));
    }

    #[test]
    fn parts_have_each_kernel_once() {
        let dir = std::env::temp_dir().join(format!("parts-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut module = Module::parse(SAMPLE).unwrap();
        module.entries[0].body = vec!["{".to_owned(); PART_LINES];
        module.entries[0].body.extend(vec!["}".to_owned(); PART_LINES]);
        let parts = cut(&levels::LEVELS[0], &module, &dir, Effort::Full).unwrap();
        assert_eq!(parts.iter().map(|part| part.kernels).collect::<Vec<_>>(), [1, 1]);
        for (part, entry) in parts.iter().zip(&module.entries) {
            let text = std::fs::read_to_string(&part.path).unwrap();
            assert_eq!(Module::parse(&text).unwrap(), module.with(&[entry]));
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_a_higher_level_has_is_assembled_too() {
        let dir = std::env::temp_dir().join(format!("own-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut module = Module::parse(SAMPLE).unwrap();
        let (first, second) = (module.entries[0].clone(), module.entries[1].clone());
        let mut changed = second.clone();
        changed.body.push("ret;".to_owned());
        let above = [module.with(&[&first]), module.with(&[&changed])];
        let parts = own(&levels::LEVELS[0], &mut module, &above, &dir).unwrap();
        assert_eq!(module.entries, std::slice::from_ref(&second));
        let read = |part: &Part| {
            let text = std::fs::read_to_string(&part.path).unwrap();
            (part.effort, Module::parse(&text).unwrap().entries)
        };
        let found: Vec<_> = parts.iter().map(read).collect();
        assert_eq!(found, [(Effort::Full, vec![second]), (Effort::Least, vec![first])]);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn another_level_is_another_file() {
        let module = Module::parse(SAMPLE).unwrap();
        let found = read(&levels::LEVELS[3], &module, &[]);
        assert!(found.iter().any(|p| p.contains(".version")));
        assert!(found.iter().any(|p| p.contains(".target")));
    }
}
