//! Runs the tests of `python/` over the library that was built beside this test. Where Python or PyTorch is not, they
//! say so and pass.

use std::path::Path;
use std::process::Command;

#[test]
fn the_python_package_passes_its_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let here = std::env::current_exe().expect("this program's path");
    let library = here.with_file_name("libbitnet_c.so");
    let mut python = Command::new("python3");
    python.args(["-B", "-m", "unittest", "discover", "python/tests"]).current_dir(root);
    match python.env("BITNET_LIBRARY", library).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            println!("{said}");
            assert!(output.status.success(), "{said}");
        }
        Err(error) => println!("no python3: {error}"),
    }
}
