//! Compiles C programs against the header with every warning an error, and runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
}

/// The program of `source`, linked to the library that was built beside this test.
fn compiled(source: &str) -> PathBuf {
    let here = std::env::current_exe().expect("this program's path");
    let libraries = here.parent().expect("a folder");
    let name = Path::new(source).file_stem().expect("a name");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    cc.arg("-I").arg(folder.join("include")).arg(folder.join(source)).arg("-o").arg(&program);
    cc.arg("-L").arg(libraries).arg(format!("-Wl,-rpath,{}", libraries.display()));
    let made = cc.args(["-lbitnet_c", "-lm"]).output().expect("a C compiler");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    program
}

fn run(program: &Path, args: &[&str]) -> Output {
    Command::new(program).args(args).current_dir(root()).output().expect("the program starts")
}

#[test]
fn the_example_writes_what_the_library_writes() {
    use bitnet_gpu::device_choice::BackendChoice;
    use bitnet_gpu::session::Session;
    use bitnet_gpu::text::SamplingParams;
    let demo = root().join("models/demo");
    let mut session = Session::builder()
        .model(&demo)
        .backend(BackendChoice::Cpu)
        .build()
        .expect("the demo model");
    let ids = session.encode("fn main() {").expect("ids");
    let params = SamplingParams { max_tokens: 32, seed: 1, ..SamplingParams::default() };
    let text = session.generate(&ids, &params, |_| std::ops::ControlFlow::Continue(()));
    let wanted = text.expect("a text").text;

    let program = compiled("examples/generate.c");
    let output = run(&program, &["models/demo", "fn main() {", "cpu"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{wanted}\n"));
    assert!(said.contains("32 tokens on CPU"), "{said}");
    let refused = run(&program, &["models/nothing", "x"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("models/nothing"));
}

#[test]
fn every_function_refuses_what_it_cannot_take() {
    let model = &["models/demo"][..];
    let sources = [
        ("tests/refusals.c", model),
        ("tests/batch.c", model),
        ("tests/logprobs.c", model),
        ("tests/layers.c", &[]),
        ("tests/rows.c", &[]),
    ];
    for (source, args) in sources {
        let output = run(&compiled(source), args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert!(output.stdout.starts_with(b"ok "), "{said}");
    }
}

#[test]
fn the_pruned_layer_is_what_rust_makes_of_it() {
    use bitnet_gpu::cpu::CpuBackend;
    use bitnet_gpu::ops::sparse::{Bitmap, Linear, SparseLinear, prune};
    use bitnet_gpu::ops::{Backend, Math};
    let [n, k, m] = [512, 1024, 2];
    let mut w: Vec<f32> = (0..n * k).map(|i| (i as i32 * 37 % 1001 - 500) as f32 / 500.0).collect();
    let x: Vec<f32> = (0..m * k).map(|i| (i % 17) as f32).collect();
    let gone = prune(&mut w, 0.75).expect("pruned");
    let cpu = CpuBackend::new(Some(1)).expect("a backend");
    let bitmap = Bitmap::from_dense(n, k, &w).expect("a matrix");
    let w = SparseLinear::upload(&cpu, "weights", &bitmap).expect("memory");
    let mut input = cpu.alloc("x", x.len()).expect("memory");
    cpu.write(&mut input, 0, &x).expect("a copy");
    let mut y = cpu.alloc("y", m * n).expect("memory");
    let op = Linear { w: &w, x: &input, y: &mut y, m, math: Math::Exact, kernel: None };
    cpu.sparse_linear(op).expect("a product");
    let y = y.as_slice();

    let output = run(&compiled("examples/pruned.c"), &["0.75"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let words: Vec<&str> =
        said.split([' ', ';', ',', '\n']).filter(|word| !word.is_empty()).collect();
    assert_eq!((words[0], words[2]), (&*gone.to_string(), "524288"), "{said}");
    // Six digits are printed.
    for (word, value) in [(words[8], y[0]), (words[11], y[m * n - 1])] {
        let found: f32 = word.parse().unwrap_or_else(|error| panic!("{said}: {error}"));
        assert!((found - value).abs() <= 1e-5 * value.abs(), "{said}: {value}");
    }
}
