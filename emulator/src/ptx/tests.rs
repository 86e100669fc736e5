//! Texts that can be read, and texts that cannot.

use std::io::Read;

use super::Program;

/// A module with one kernel of this body.
fn module(body: &str) -> String {
    format!(
        ".version 8.1\n.target sm_90a\n.extern .shared .align 16 .b8 room[];\n\
         .visible .entry k(.param .u64 p)\n{{\n.reg .pred %p<4>; .reg .b16 %rs<4>; \
         .reg .b32 %r<8>; .reg .b64 %rd<4>;\n{body}\n}}\n"
    )
}

/// Why a kernel of this body cannot be read.
fn refusal(body: &str) -> Option<String> {
    Program::parse(&module(body)).err()
}

/// Every committed kernel, of every level.
#[test]
fn every_committed_kernel_is_read() {
    let mut refused = Vec::new();
    let mut levels = Vec::new();
    for file in ["sm_53", "sm_80", "sm_90a"] {
        let path = format!("{}/../kernels-gpu/ptx/{file}.ptx.xz", env!("CARGO_MANIFEST_DIR"));
        let file = std::fs::File::open(&path).unwrap_or_else(|why| panic!("{path}: {why}"));
        let mut texts = String::new();
        lzma_rust2::XzReader::new(file, false).read_to_string(&mut texts).expect("PTX");
        levels.extend(texts.split('\0').map(str::to_owned));
    }
    assert_eq!(levels.len(), 6);
    for text in levels {
        let target = text.split_once("\n.target ").expect("a target").1;
        let level = target.lines().next().expect("a name");
        let mut entries = text.split(".visible .entry ");
        let head = entries.next().expect("a header");
        let mut kernels = 0;
        for entry in entries {
            kernels += 1;
            if let Err(why) = Program::parse(&format!("{head}.visible .entry {entry}")) {
                refused.push(format!("{level}: {why}"));
            }
        }
        assert!(kernels > 20, "{level}: only {kernels} kernels");
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn a_refusal_names_the_kernel_and_the_instruction() {
    let why = refusal("add.s32 %r1, %r2, %r3;\nfrobnicate.b32   %r1,\n %r2;").expect("unknown");
    assert_eq!(why, "k: an unknown instruction: frobnicate.b32 %r1, %r2");
}

#[test]
fn good_bodies_are_read() {
    for body in [
        "",
        "// a comment ; }\nret;",
        "@!%p1 bra END; { .reg .b32 a, b<2>; mov.u32 a, b1; add.s32 a, a, -5; } END: ret;",
        "{ again: @%p1 bra again; } { again: @%p2 bra again; bra OUT; } OUT:",
        "$T: .branchtargets A, B; brx.idx %r1, $T; A: trap; B: exit;",
        "mov.u32 %r1, room; st.shared.v2.b32 [room+8], {%r1, 0f3F800000};",
        "ld.param.u64 %rd1, [p]; cvta.to.global.u64 %rd1, %rd1; ld.global.u8 %rs1, [%rd1+-1];",
        "mov.b32 {%rs1, _}, %r1; mov.b32 %r1, {%rs1, 7}; mov.b64 {_, %r1}, %rd1;",
        "ld.global.s32 %rd1, [%rd2]; ld.shared.v4.b32 {%r1, _, %r2, _}, [%r3];",
        "setp.eq.b16 %p1, %rs1, -1; selp.b16 %rs1, 0xFFFF, -32768, %p1; shl.b16 %rs1, %rs1, %r1;",
        "createpolicy.fractional.L2::evict_first.b64 %rd1; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r1], [%rd2], %r2, [%r3], %rd1;",
        "cp.async.cg.shared.global.L2::cache_hint [%r1], [%rd2], 16, %rd1;",
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%r1], [%rd1, {%r1, %r2, %r1, %r2}], [%r3], %rd2;",
        ".pragma \"nounroll\"; mov.pred %p1, 1; mul.wide.u16 %r1, %rs1, %rs2;",
    ] {
        assert_eq!(refusal(body), None, "{body}");
    }
}

#[test]
fn what_is_not_known_in_full_is_refused() {
    for (body, why) in [
        // An opcode with a modifier that changes what it does.
        ("add.rz.f32 %r1, %r2, %r3;", "an unknown instruction"),
        ("add.cc.s32 %r1, %r2, %r3;", "an unknown instruction"),
        ("add.sat.s32 %r1, %r2, %r3;", "an unknown instruction"),
        ("add.f64 %rd1, %rd2, %rd3;", "an unknown instruction"),
        ("add.f16x2 %r1, %r2, %r3;", "an unknown instruction"),
        ("mul.hi.s64 %rd1, %rd2, %rd3;", "an unknown instruction"),
        ("mul.hi.s16 %rs1, %rs2, %rs3;", "an unknown instruction"),
        ("ex2.approx.f32 %r1, %r2;", "an unknown instruction"),
        ("setp.lt.and.f32 %p1, %r1, %r2, %p2;", "an unknown instruction"),
        ("setp.lt.f64 %p1, %rd1, %rd2;", "unknown type"),
        ("setp.lt.s16 %p1, %rs1, %rs2;", "16 signed bits"),
        ("cvt.rz.bf16x2.f32 %r1, %r2, %r3;", "operands expected"),
        ("mbarrier.arrive.shared.b64 %rd1, [%r1], 2;", "operands expected"),
        ("ld.b32 %r1, [%rd1];", "generic"),
        ("ld.acquire.sys.global.b32 %r1, [%rd1];", "acquire"),
        ("cp.async.cg.shared.global [%r1], [%rd1], 8;", "a size"),
        ("cp.async.cg.shared.global.L2::cache_hint [%r1], [%rd1], 16;", "a small number"),
        ("cp.async.wait_all;", "an unknown copy"),
        ("createpolicy.fractional.L2::evict_last.b64 %rd1;", "an unknown instruction"),
        ("bar;", "an unknown instruction"),
        ("bar.arrive 1;", "operands expected"),
        ("mma;", "an unknown product"),
        ("wgmma.mma_async;", "an unknown instruction"),
        ("ld;", "an unknown instruction"),
        ("st;", "an unknown instruction"),
        // Operands of another kind or number.
        ("add.s32 5, %r1, %r2;", "a register expected"),
        ("add.s32 _, %r1, %r2;", "no register _"),
        ("add.s32 %r1, %r2;", "operands expected"),
        ("add.s32 %r1, %rs1, %r2;", "another size"),
        ("add.s32;", "operands expected"),
        ("add.s32 %r1, %r2, 0x123456789;", "more than 32 bits"),
        ("add.s16 %rs1, %rs1, -32769;", "more than 16 bits"),
        ("mov.b64 {%rs1, %rs2, %rs3, %rs3}, %rd1;", "a list of 2"),
        ("shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1;", "no register"),
        ("vote.sync.any.pred %p1, !%p2, -1;", "no register"),
        ("ld.global.b64 %r1, [%rd1];", "another size"),
        ("ld.global.v4.b64 {%rd1, %rd2, %rd3, %rd1}, [%rd1];", "another size"),
        ("ld.global.v4.b32 {%r1, %r2}, [%rd1];", "as many registers"),
        ("st.global.v4.b64 [%rd1], {%rd1, %rd2, %rd3, %rd1};", "16 bytes"),
        ("st.global.b32 [%rd1], %rs1;", "another size"),
        ("ld.global.b32 %r1, [%p1];", "no address"),
        ("ld.global.b32 %r1, %rd1;", "an address expected"),
        ("add.s32 %r8, %r1, %r2;", "no register %r8"),
        ("bra %r1;", "no label %r1"),
        ("bra;", "a label expected"),
        ("brx.idx %r1, T;", "no table T"),
        ("{ L: } bra L;", "no label L"),
        ("L: L: ret;", "comes twice"),
        ("@%r1 ret;", "another size"),
        ("@%p1;", "no instruction"),
        (".shared .b8 x[4];", "directive"),
        (".reg .f64 %fd<2>;", "registers"),
        (".reg .b32 %x<4000000000>;", "registers"),
        (".branchtargets L;", "a table without a name"),
        ("ret { ; }", "a brace too many"),
        ("ret", "no semicolon"),
    ] {
        let found = refusal(body).unwrap_or_else(|| panic!("{body} is read"));
        assert!(found.starts_with("k: ") && found.contains(why), "{body}: {found}");
    }
    assert!(Program::parse(".entry k(").is_err());
    assert!(Program::parse(".entry k() { {").is_err());
}

#[test]
fn directives_of_a_head_are_kept() {
    let text = ".entry a(.param .u32 x, .param .align 8 .b8 y[16])\n.reqntid 64, 2, 1\n\
                .reqnctapercluster 2\n{ griddepcontrol.wait; }\n.entry b() { }";
    let program = Program::parse(text).expect("good");
    let [a, b] = &program.kernels[..] else { panic!("two kernels") };
    assert_eq!((&*a.name, &*b.name), ("a", "b"));
    assert_eq!((a.reqntid, a.cluster), (Some([64, 2, 1]), Some([2, 1, 1])));
    assert_eq!((a.param_bytes, &a.params[..]), (24, &[(0, 4), (8, 16)][..]));
    assert_eq!((b.reqntid, b.cluster, b.param_bytes), (None, None, 0));
    assert!(a.waits && !b.waits);
}
