//! PTX as text: read into parts, cleaned of what varies between machines, given launch bounds, and
//! written back.
//!
//! Two builds of the same source must give the same bytes: comments go, entries stand in the order
//! of their names, and symbols that carry a hash of crate paths are numbered instead.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use anyhow::{Context, Result, bail};
use contract::launch::KernelInfo;

/// A PTX file in parts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Module {
    /// Lines outside functions, in order: `.version`, `.target`, globals, debug sections.
    pub(crate) top: Vec<String>,
    /// Kernels.
    pub(crate) entries: Vec<Entry>,
    /// Names of `.func`s: device functions that were not inlined.
    pub(crate) funcs: Vec<String>,
}

/// One `.entry`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Symbol.
    pub(crate) name: String,
    /// Bytes of each parameter.
    pub(crate) params: Vec<u32>,
    /// Declaration up to the body.
    head: Vec<String>,
    /// Performance directives.
    pub(crate) directives: Vec<String>,
    /// Lines of the body, braces included.
    pub(crate) body: Vec<String>,
}

impl Entry {
    /// Whether `other` is the same program, whatever its launch bounds.
    fn runs_as(&self, other: &Self) -> bool {
        self.name == other.name
            && self.head == other.head
            && self.body.len() == other.body.len()
            && self.body.iter().zip(&other.body).all(|(a, b)| same_line(a, b))
    }
}

impl Module {
    /// Names of kernels that are the same program in `other`; none where the two have different globals.
    pub(crate) fn shared_with(&self, other: &Self) -> Vec<&str> {
        let globals = |module: &Self| -> Vec<String> {
            let head = [".version", ".target"];
            let of_target = |line: &&String| head.iter().any(|name| line.starts_with(name));
            module.top.iter().filter(|line| !of_target(line)).cloned().collect()
        };
        if globals(self) != globals(other) {
            return Vec::new();
        }
        let same = |entry: &&Entry| other.entries.iter().any(|theirs| entry.runs_as(theirs));
        self.entries.iter().filter(same).map(|entry| entry.name.as_str()).collect()
    }

    /// Reads what rustc emits, and what [`Module`] writes.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut module = Self::default();
        let mut lines = text.lines().map(clean).filter(|line| !line.trim().is_empty());
        while let Some(line) = lines.next() {
            if line.contains(".func ") {
                module.funcs.push(name_after(&line, ".func").unwrap_or_else(|| line.clone()));
                if !line.trim_end().ends_with(';') {
                    let (_, _, _) = function(line, &mut lines)?;
                }
            } else if let Some(name) = name_after(&line, ".entry") {
                let (head, directives, body) = function(line, &mut lines)
                    .with_context(|| format!("entry `{name}` has no end"))?;
                let params = head.iter().filter_map(|line| param_bytes(line)).collect();
                module.entries.push(Entry { name, params, head, directives, body });
            } else {
                module.top.push(line);
            }
        }
        if module.directive(".version").is_none() || module.directive(".target").is_none() {
            bail!("not PTX: no .version or no .target line");
        }
        Ok(module)
    }

    /// The same with these of its entries.
    pub(crate) fn with(&self, entries: &[&Entry]) -> Self {
        let entries = entries.iter().map(|&entry| entry.clone()).collect();
        Self { top: self.top.clone(), entries, funcs: self.funcs.clone() }
    }

    /// What follows a top-level directive such as `.version`.
    pub(crate) fn directive(&self, name: &str) -> Option<&str> {
        self.top.iter().find_map(|line| line.strip_prefix(name)).map(str::trim)
    }

    /// Sorts entries, numbers hashed symbols, and writes launch bounds from the contract: those of
    /// `level`, as `LaunchSpec::min_blocks_from` counts it.
    pub(crate) fn finish(&mut self, kernels: &[KernelInfo], level: u32) {
        self.entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in &mut self.entries {
            let Some(kernel) = kernels.iter().find(|k| k.spec.symbol == entry.name) else {
                continue;
            };
            // Rust cannot say launch bounds. Without them the driver gave a 544-thread kernel more
            // registers than fit, and its launch failed.
            let [x, y, z] = kernel.spec.block;
            entry.directives.retain(|line| {
                !["tid", ".minnctapersm", ".maxnreg", "cluster"]
                    .iter()
                    .any(|directive| line.contains(directive))
            });
            entry.directives.push(format!(".reqntid {x}, {y}, {z}"));
            if kernel.spec.cluster > 1 {
                entry.directives.push(format!(".reqnctapercluster {}, 1, 1", kernel.spec.cluster));
            }
            if kernel.spec.tensor_maps {
                // Nor an alignment above 16.
                for line in &mut entry.head {
                    *line = line.replace(".param .align 8 ", ".param .align 64 ");
                }
            }
            let blocks = kernel.spec.min_blocks_at(level);
            if kernel.spec.max_registers > 0 {
                entry.directives.push(format!(".maxnreg {}", kernel.spec.max_registers));
            } else if blocks > 0 {
                entry.directives.push(format!(".minnctapersm {blocks}"));
            }
        }
        self.number_hashed_symbols();
    }

    fn number_hashed_symbols(&mut self) {
        let mut names = BTreeMap::new();
        for line in &self.top {
            for word in words(line).filter(|word| is_hashed(word)) {
                let next = names.len();
                names.entry(word.to_owned()).or_insert_with(|| format!("constant_{next}"));
            }
        }
        if names.is_empty() {
            return;
        }
        let bodies = self.entries.iter_mut().flat_map(|entry| &mut entry.body);
        for line in self.top.iter_mut().chain(bodies) {
            *line = rename(line, &names);
        }
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Debug sections come last in what the compiler writes, and refer to labels in bodies.
        let sections = self.top.iter().position(|line| line.contains(".section"));
        let (before, after) = self.top.split_at(sections.unwrap_or(self.top.len()));
        for line in before {
            writeln!(f, "{line}")?;
        }
        for entry in &self.entries {
            f.write_char('\n')?;
            for line in entry.head.iter().chain(&entry.directives).chain(&entry.body) {
                writeln!(f, "{line}")?;
            }
        }
        for line in after {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

/// What begins a label. A number follows that the compiler counts over all entries of a text (`$L__BB12_3`), so that
/// the same kernel has others beside other kernels.
const LABEL: &str = "$L__BB";

/// A line in parts, without the numbers in its labels.
fn unnumbered(line: &str) -> impl Iterator<Item = &str> {
    line.split(LABEL).enumerate().map(|(at, part)| match at {
        0 => part,
        _ => part.trim_start_matches(|c: char| c.is_ascii_digit()),
    })
}

/// Whether two lines are the same but for the numbers in their labels.
fn same_line(a: &str, b: &str) -> bool {
    a == b || (a.contains(LABEL) && unnumbered(a).eq(unnumbered(b)))
}

/// Reads one function from its first line: declaration, directives, body.
fn function(
    first: String,
    lines: &mut impl Iterator<Item = String>,
) -> Result<(Vec<String>, Vec<String>, Vec<String>)> {
    let (mut head, mut directives, mut body) = (vec![first], Vec::new(), Vec::new());
    let mut parens = depth(&head[0], '(', ')');
    let mut declared = parens == 0 && head[0].contains(')');
    let mut braces = 0;
    for line in lines {
        if !body.is_empty() || line.trim_start().starts_with('{') {
            braces += depth(&line, '{', '}');
            body.push(line);
            if braces == 0 {
                return Ok((head, directives, body));
            }
        } else if declared {
            directives.push(line.trim().to_owned());
        } else {
            parens += depth(&line, '(', ')');
            declared = parens == 0;
            head.push(line);
        }
    }
    bail!("the file ends inside a function")
}

/// A line without comments and trailing blanks. `.file` and `.ascii` lines hold quoted text.
fn clean(line: &str) -> String {
    let code = if line.contains('"') { line } else { line.split("//").next().unwrap_or("") };
    code.trim_end().to_owned()
}

fn depth(line: &str, open: char, close: char) -> i32 {
    line.chars().map(|c| i32::from(c == open) - i32::from(c == close)).sum()
}

fn name_after(line: &str, keyword: &str) -> Option<String> {
    let rest = line.split_once(keyword)?.1;
    // A `.func` may have its return parameter first, in parentheses.
    let rest = rest.trim_start();
    let rest = if rest.starts_with('(') { rest.split_once(')')?.1 } else { rest };
    words(rest).next().map(str::to_owned)
}

/// Identifiers, registers, directives and numbers of a line.
pub(crate) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !is_word(c)).filter(|word| !word.is_empty())
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.')
}

/// Bytes declared by a `.param` line of a head.
fn param_bytes(line: &str) -> Option<u32> {
    let rest = line.trim_start().strip_prefix(".param")?;
    let count = match rest.split_once('[') {
        Some((_, n)) => n.split_once(']')?.0.trim().parse().ok()?,
        None => 1,
    };
    let size = words(rest).find_map(|word| {
        let bits = word.strip_prefix('.')?.trim_start_matches(['b', 'u', 's', 'f']);
        bits.parse::<u32>().ok().filter(|bits| bits % 8 == 0).map(|bits| bits / 8)
    })?;
    Some(size * count)
}

/// Whether a symbol carries a compiler hash: mangled names and anonymous constants do.
fn is_hashed(word: &str) -> bool {
    word.starts_with("_ZN")
        || word.starts_with("_R")
        || word.starts_with("anon")
        || word.starts_with("__unnamed")
        || word.starts_with("$L__unnamed")
        || word.starts_with("alloc_")
}

fn rename(line: &str, names: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(is_word) {
        out.push_str(&rest[..start]);
        let word = &rest[start..];
        let word = &word[..word.find(|c| !is_word(c)).unwrap_or(word.len())];
        out.push_str(names.get(word).map_or(word, String::as_str));
        rest = &rest[start + word.len()..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use contract::launch::LaunchSpec;

    /// Two kernels out of order, a hashed constant, and what rustc writes around them.
    pub(crate) const SAMPLE: &str = "\
//
// Generated by LLVM NVPTX Back-End
//

.version 6.0
.target sm_53
.address_size 64

	// .globl	scale                   // -- Begin function scale
.extern .shared .align 16 .b8 dyn_smem[];
.global .align 4 .b8 anon_5f3a_1[8] = {1, 2, 3, 4, 5, 6, 7, 8};

.visible .entry scale(
	.param .align 8 .b8 scale_param_0[24]
)
{
	.reg .b32 	%r<11>;                 // a register

	ld.param.b64 	%rd5, [scale_param_0+16];
	bar.sync 	0;
	shfl.sync.bfly.b32 	%r7, %r6, 1, 31, -1;
	{ .reg .b32 tmp; mov.b64 {tmp, %r2}, %rd5; }
	mov.b64 	%rd9, anon_5f3a_1;
	ret;
                                        // -- End function
}
.visible .entry add(.param .u64 add_param_0, .param .u32 add_param_1)
.maxntid 1, 1, 1
{
	ret;
}
";

    fn kernel(symbol: &'static str) -> KernelInfo {
        let spec = LaunchSpec::new(symbol, 256).with_min_blocks(2);
        KernelInfo { family: "k", spec, args_bytes: 24 }
    }

    #[test]
    fn reads_entries_and_parameters() {
        let module = Module::parse(SAMPLE).unwrap();
        assert_eq!(module.directive(".version"), Some("6.0"));
        let found: Vec<_> = module.entries.iter().map(|e| (&*e.name, &*e.params)).collect();
        assert_eq!(found[0], ("scale", &[24][..]));
        assert_eq!(found[1].0, "add");
        assert!(module.funcs.is_empty());
    }

    #[test]
    fn writes_bounds_sorts_and_numbers() {
        let mut module = Module::parse(SAMPLE).unwrap();
        module.finish(&[kernel("scale"), kernel("add")], 800);
        let text = module.to_string();
        assert!(text.contains(")\n.reqntid 256, 1, 1\n.minnctapersm 2\n{\n"), "{text}");
        assert!(!text.contains("maxntid") && !text.contains("//") && !text.contains("anon"));
        assert!(text.contains("mov.b64 \t%rd9, constant_0;"));
        assert!(text.find(".entry add").unwrap() < text.find(".entry scale").unwrap());
    }

    #[test]
    fn what_it_writes_reads_back_the_same() {
        let mut module = Module::parse(SAMPLE).unwrap();
        module.finish(&[kernel("scale")], 800);
        let again = Module::parse(&module.to_string()).unwrap();
        assert_eq!(again, module);
    }

    #[test]
    fn names_functions_that_were_not_inlined() {
        let text = format!("{SAMPLE}.func (.param .b32 r) helper(.param .b32 a)\n{{\nret;\n}}\n");
        assert_eq!(Module::parse(&text).unwrap().funcs, ["helper"]);
    }

    #[test]
    fn kernels_are_the_same_when_head_and_body_are() {
        let module = Module::parse(SAMPLE).unwrap();
        let newer = SAMPLE.replace("sm_53", "sm_61").replace("maxntid 1", "maxntid 2");
        assert_eq!(module.shared_with(&Module::parse(&newer).unwrap()), ["scale", "add"]);
        let other = newer.replace("bfly.b32", "idx.b32");
        assert_eq!(module.shared_with(&Module::parse(&other).unwrap()), ["add"]);
        let labels = |of: &str| {
            let jump = |number: u32| format!("bra \t$L__BB{of}_{number};\n\tret;");
            Module::parse(&newer.replacen("ret;", &jump(7), 1)).unwrap()
        };
        assert_eq!(labels("3").shared_with(&labels("12")), ["scale", "add"]);
        assert_eq!(labels("3").shared_with(&module), ["add"]);
        let constants = newer.replace("{1, 2", "{2, 2");
        assert!(module.shared_with(&Module::parse(&constants).unwrap()).is_empty());
    }

    #[test]
    fn a_cut_file_is_refused() {
        let cut = &SAMPLE[..SAMPLE.find("shfl").unwrap()];
        assert!(Module::parse(cut).is_err());
        assert!(Module::parse("").is_err());
    }
}
