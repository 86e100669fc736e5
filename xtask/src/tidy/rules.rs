//! The rules, each as a function from a path and a text to problems in words.

use std::collections::BTreeSet;

use super::code;

/// Most lines of a source file.
const MAX_LINES: usize = 600;

/// File names that say nothing.
const EMPTY_NAMES: &[&str] = &["utils.rs", "util.rs", "common.rs", "helpers.rs", "misc.rs"];

/// One name, six rooms: folder and file extension of each.
pub(crate) const ROOMS: [&str; 6] = [
    "kernels-gpu/contract/src",
    "kernels-gpu/src",
    "host/src/ops",
    "host/src/reference",
    "host/tests/gpu",
    "benches",
];

/// Rooms that a family lacks. A room is `NAME.rs`, or a folder `NAME/` with a `mod.rs`.
pub(super) fn rooms(families: &[&str], files: &BTreeSet<String>) -> Vec<String> {
    let lacks = |family: &&str| -> Vec<String> {
        ROOMS
            .iter()
            .filter(|room| !files.contains(&format!("{room}/{family}/mod.rs")))
            .map(|room| format!("{room}/{family}.rs"))
            .filter(|file| !files.contains(file))
            .collect()
    };
    families
        .iter()
        .map(|family| (family, lacks(family)))
        .filter(|(_, lacks)| !lacks.is_empty())
        .map(|(family, lacks)| format!("family `{family}` lacks {}", lacks.join(", ")))
        .collect()
}

/// Every rule over one source file.
pub(super) fn source(file: &str, text: &str) -> Vec<String> {
    let code = code::only(text);
    let mut problems = Vec::new();
    let lines = text.lines().count();
    if lines > MAX_LINES {
        problems.push(format!("{file}: {lines} lines; the most is {MAX_LINES}"));
    }
    if !text.trim_start_matches('\u{feff}').starts_with("//!") {
        problems.push(format!("{file}: does not start with `//!` documentation"));
    }
    if let Some(name) = EMPTY_NAMES.iter().find(|name| file.ends_with(&format!("/{name}"))) {
        problems.push(format!("{file}: `{name}` says nothing; name the thing it holds"));
    }
    let originals: Vec<&str> = text.lines().collect();
    for (i, line) in code.lines().enumerate() {
        let at = || format!("{file}:{}", i + 1);
        for word in ["todo!", "unimplemented!", "dbg!"] {
            if has_word(line, word) {
                problems.push(format!("{}: `{word}`", at()));
            }
        }
        if line.contains("#[ignore]") {
            problems.push(format!("{}: an ignored test without a reason", at()));
        }
        let asm = ["asm!", "global_asm!", "naked_asm!"].into_iter().find(|w| has_word(line, w));
        if let Some(asm) = asm
            && !asm_allowed(file, asm)
        {
            problems.push(format!("{}: `{asm}` belongs in kernels-gpu/src/arch/", at()));
        }
        problems.extend(launches(file, line).map(|what| format!("{}: {what}", at())));
        if opens_unsafe(line) && !argued(&originals, i) {
            problems.push(format!("{}: `unsafe` without a `// SAFETY:` argument", at()));
        }
    }
    problems
}

/// Device instructions in the prelude; the driver's symbols are naked functions; the CPU backend
/// has instructions that stable Rust does not name yet.
fn asm_allowed(file: &str, asm: &str) -> bool {
    file.starts_with("kernels-gpu/src/arch/")
        || (file.starts_with("host/src/driver/") && asm == "naked_asm!")
        || (file.starts_with("host/src/cpu/") && asm == "asm!")
}

/// Whether `word` stands in `line` and is not the end of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

/// Whether an unsafe block or an unsafe implementation starts in this line of code.
fn opens_unsafe(line: &str) -> bool {
    line.match_indices("unsafe").any(|(at, word)| {
        let before = line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let after = line[at + word.len()..].trim_start();
        !before && (after.starts_with('{') || after.starts_with("impl "))
    })
}

/// Whether a SAFETY comment stands in line `i`, or above it: over the statement it is part of.
fn argued(lines: &[&str], i: usize) -> bool {
    if lines[i].contains("// SAFETY:") {
        return true;
    }
    for line in lines[..i].iter().rev().map(|line| line.trim()) {
        if line.starts_with("//") {
            if line.starts_with("// SAFETY:") {
                return true;
            }
            continue;
        }
        let code = line.split("//").next().unwrap_or_default().trim_end();
        // The statement above has ended: its argument is not this one's.
        if code.is_empty() || code.ends_with([';', '}', '{']) && !code.ends_with("=> {") {
            return false;
        }
    }
    false
}

/// Kernels are launched by `KernelHandle::launch`, which checks them against the contract: nobody
/// else calls the driver for that. And it is called from the operations, which check shapes first.
fn launches(file: &str, line: &str) -> Option<&'static str> {
    let raw = ["cuLaunchKernel", "launch_kernel", "launch!"].iter().any(|w| has_word(line, w));
    // The handle; the driver's functions as data; their symbols.
    let home = ["kernel.rs", "api.rs", "loader.rs"].map(|file| format!("host/src/driver/{file}"));
    let emulated = file.starts_with("emulator/"); // is the driver itself
    if raw && !emulated && !home.iter().any(|home| home == file) {
        return Some("the driver is called to launch a kernel; KernelHandle::launch does that");
    }
    let outside = !file.starts_with("host/src/driver/") && !file.starts_with("host/src/ops/");
    (line.contains(".launch(") && file.starts_with("host/src/") && outside)
        .then_some("a kernel is launched here; operations do that, behind their shape checks")
}

/// Names of several words, such as `bmm_f32` and the `bmm_` of `bmm_*`.
pub(super) fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|name| name.contains('_') && name.starts_with(|c: char| c.is_ascii_lowercase()))
}

/// Names in a page about kernels that are in no source. Part of a name will do.
pub(super) fn unknown(file: &str, text: &str, words: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    for (i, line) in text.lines().enumerate() {
        // Between backticks.
        for name in line.split('`').skip(1).step_by(2).flat_map(names) {
            if !words.contains(name) && !words.iter().any(|word| word.contains(name)) {
                problems.push(format!("{file}:{}: nothing is called `{name}`", i + 1));
            }
        }
    }
    problems
}

/// Lines that name a place on somebody's machine.
pub(super) fn machine_path(file: &str, text: &str, starts: &[String]) -> Vec<String> {
    let names = |line: &str| {
        starts.iter().any(|start| {
            line.match_indices(start.as_str()).any(|(at, _)| {
                // `~/root/` or `docs/home/` are relative.
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-~/}".contains(c))
            })
        })
    };
    text.lines()
        .enumerate()
        .filter(|(_, line)| names(line))
        .map(|(i, line)| format!("{file}:{}: a machine path: {}", i + 1, line.trim()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> Vec<String> {
        source("host/src/x.rs", &format!("//! X.\n{text}"))
    }

    #[test]
    fn a_missing_room_is_named() {
        let all: BTreeSet<_> = ROOMS.iter().map(|room| format!("{room}/rope.rs")).collect();
        assert!(rooms(&["rope"], &all).is_empty());
        for room in ROOMS {
            let mut files = all.clone();
            files.remove(&format!("{room}/rope.rs"));
            assert_eq!(rooms(&["rope"], &files).len(), 1, "{room}");
            files.insert(format!("{room}/rope/mod.rs"));
            assert!(rooms(&["rope"], &files).is_empty(), "{room}");
        }
        let none = rooms(&["rope", "rms"], &all);
        assert_eq!((none.len(), none[0].matches("rms.rs").count()), (1, 6));
    }

    #[test]
    fn lines_are_counted() {
        assert!(body(&"\n".repeat(599)).is_empty());
        assert_eq!(body(&"\n".repeat(600)).len(), 1);
    }

    #[test]
    fn module_documentation_is_there() {
        assert!(source("a.rs", "//! Says.\nfn f() {}").is_empty());
        assert_eq!(source("a.rs", "fn f() {}").len(), 1);
        assert_eq!(source("a.rs", "/// Of f.\nfn f() {}").len(), 1);
    }

    #[test]
    fn asm_has_its_places() {
        let text = "//! X.\nfn f() { asm!(\"nop\") }\n";
        assert!(source("kernels-gpu/src/arch/dot.rs", text).is_empty());
        assert!(source("host/src/cpu/neon.rs", text).is_empty());
        for file in ["kernels-gpu/src/rope.rs", "host/src/driver/api.rs", "cli/src/main.rs"] {
            assert_eq!(source(file, text).len(), 1, "{file}");
        }
        let naked = "//! X.\nfn f() { naked_asm!(\"jmp\") }\n";
        assert!(source("host/src/driver/loader.rs", naked).is_empty());
        assert_eq!(source("host/src/cpu/neon.rs", naked).len(), 1);
        assert!(body("// asm!(\"nop\")\nlet s = \"asm!(\";\n").is_empty());
    }

    #[test]
    fn unsafe_is_argued() {
        for good in [
            "// SAFETY: in bounds.\nlet x = unsafe { f() };",
            "// SAFETY: in bounds,\n// by the check above.\nlet x =\n    unsafe { f() };",
            "match a {\n    // SAFETY: checked.\n    A => unsafe { f() },\n}",
            "// SAFETY: no state.\nunsafe impl Send for A {}",
            "unsafe fn f() {}",
            "unsafe extern \"C\" { }",
            "let s = \"unsafe { }\"; // unsafe { }",
            "f(|| {\n    // SAFETY: checked.\n    unsafe { g() }\n})",
        ] {
            assert!(body(good).is_empty(), "{good}");
        }
        for bad in [
            "let x = unsafe { f() };",
            "// Fast.\nlet x = unsafe { f() };",
            "// SAFETY: of the first.\nlet x = unsafe { f() };\nlet y = unsafe { f() };",
            "// SAFETY: far away.\n\nlet x = unsafe { f() };",
            "unsafe impl Send for A {}",
        ] {
            assert_eq!(body(bad).len(), 1, "{bad}");
        }
    }

    #[test]
    fn launches_have_their_places() {
        let raw = "//! X.\nfn f() { cuLaunchKernelEx(a) }\nfn g() { (api.launch_kernel)(a) }\n";
        assert!(source("host/src/driver/kernel.rs", raw).is_empty());
        assert_eq!(source("host/src/driver/graph.rs", raw).len(), 2);
        assert_eq!(source("cli/src/main.rs", raw).len(), 2);
        assert_eq!(body("launch!(f<<<1, 1, 0, s>>>(x))").len(), 1);
        let checked = "//! X.\nfn f() { kernel.launch(&stream, grid, args) }\n";
        assert!(source("host/src/ops/rope.rs", checked).is_empty());
        assert_eq!(source("host/src/layers/block.rs", checked).len(), 1);
        assert!(body("// kernel.launch(x)").is_empty());
    }

    #[test]
    fn machine_paths_are_found() {
        let starts = ["/pc/".to_owned(), "/data/".to_owned()];
        let found = |line: &str| machine_path("a.md", line, &starts).len();
        assert_eq!(found("see /pc/me/x"), 1);
        assert_eq!(found("cd '/data/x'"), 1);
        assert_eq!(found("models/data/x and ~/pc/x and $HOME/x"), 0);
    }

    #[test]
    fn pages_name_what_there_is() {
        let words = names("fn conv2d_turn_bf16(x_at: usize)").map(str::to_owned).collect();
        let found = |line: &str| unknown("a.md", line, &words).len();
        assert_eq!(found("`conv2d_turn_bf16`, `conv2d_turn_*` and `x_at`; not gone_kernel"), 0);
        assert_eq!(found("`conv2d_turned` and `conv2d_turn*`, `let y_at = x_at`"), 2);
    }

    #[test]
    fn leftovers_are_found() {
        assert_eq!(body("fn f() { todo!() }").len(), 1);
        assert_eq!(body("fn f() { dbg!(1); }").len(), 1);
        assert_eq!(body("#[ignore]\nfn f() {}").len(), 1);
        assert!(body("#[ignore = \"an hour long\"]\nfn f() {}").is_empty());
        assert_eq!(source("host/src/utils.rs", "//! X.\n").len(), 1);
    }
}
