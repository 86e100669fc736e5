//! Runs the examples that need no GPU, as programs. `cargo test` builds them beside the tests.

use std::path::PathBuf;
use std::process::Command;

fn run(name: &str, args: &[&str]) -> String {
    let exe = std::env::current_exe().expect("this program's path");
    // target/PROFILE/deps/examples-HASH -> target/PROFILE/examples/NAME
    let folder = exe.ancestors().nth(2).expect("a target folder").join("examples");
    let program = folder.join(name).with_extension(std::env::consts::EXE_EXTENSION);
    assert!(
        program.is_file(),
        "{} is not built; `cargo test` builds it when no target is named",
        program.display()
    );
    let output = Command::new(&program)
        .args(args)
        .env("BITNET_DEVICE", "cpu")
        .output()
        .expect("the example starts");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(output.status.success(), "{name} failed:\n{out}{err}");
    out
}

#[test]
fn choose_backend() {
    assert!(run("choose_backend", &["cpu"]).contains("cpu -> cpu"));
}

#[test]
fn lut_matmul() {
    let text = run("lut_matmul", &["cpu"]);
    assert!(text.contains("TL1 and TL2: the bits of w2a8_gemv"), "{text}");
    assert!(text.contains("lossy: NMSE"), "{text}");
}

#[test]
fn conv2d() {
    let text = run("conv2d", &["cpu"]);
    assert!(text.contains("[2, 9, 7, 16] on CPU") && text.contains("y[0..4] = ["), "{text}");
}

#[test]
fn sparse() {
    let text = run("sparse", &["cpu"]);
    assert!(text.contains("310800 of 388500 weights pruned"), "{text}");
    assert!(text.contains("2x500x777 on CPU") && text.contains("y[0, 0..4] = ["), "{text}");
}

#[test]
fn gemv() {
    let text = run("gemv", &["cpu"]);
    assert!(text.contains("1000x777 on CPU") && text.contains("y[0..4] = ["), "{text}");
}

#[test]
fn bmm() {
    let text = run("bmm", &["cpu"]);
    assert!(text.contains("4 of 96x64 on CPU") && text.contains("exact[0..3] = ["), "{text}");
}

#[test]
fn generate() {
    let demo = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/demo");
    let text = run("generate", &[&demo.display().to_string(), "fn main() {"]);
    assert!(text.starts_with("fn main() {") && text.len() > 40, "{text}");
}

#[test]
fn batch() {
    let demo = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/demo");
    let text = run("batch", &[&demo.display().to_string()]);
    for prompt in ["fn main() {", "use std::", "/// The number of", "struct "] {
        assert_eq!(text.matches(&format!(" tokens: {prompt}")).count(), 1, "{text}");
    }
    assert!(text.contains("at most 2 of 16 pages on CPU"), "{text}");
}

#[test]
fn rows_elements_and_images() {
    for (name, part) in [
        ("softmax", "[1.0, 0.0, 0.0, 0.0]"),
        ("layernorm", "x + delta = [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]"),
        ("rmsnorm", "2.19"),
        ("activation", "relu(g)^2 * u = [0.0, 0.0, 0.0, 4.0, 45.0]"),
        ("elementwise", "relu(a + b)        = [1.5, 0.0, 3.5, 0.0, 5.5, 0.0]"),
        ("pool2d", "["),
    ] {
        let text = run(name, &[]);
        assert!(text.contains(part), "{name}: {text}");
    }
}
