//! Kernels of a few lines.

mod blocks;
mod convert;
mod faults;
mod floats;
mod flow;
mod integers;
mod lanes;
mod late;

use super::{Fault, Launch, launch};
use crate::memory::Memory;
use crate::ptx::Program;

/// Blocks and threads, all along x.
#[derive(Clone, Copy)]
struct Shape {
    blocks: u32,
    threads: u32,
    cluster: u32,
    cooperative: bool,
    /// Bytes of `room`.
    shared: u32,
}

impl Shape {
    /// One block.
    const fn block(threads: u32) -> Self {
        Self { blocks: 1, threads, cluster: 1, cooperative: false, shared: 4096 }
    }

    /// One cluster.
    const fn cluster(blocks: u32, threads: u32) -> Self {
        Self { blocks, cluster: blocks, ..Self::block(threads) }
    }
}

/// Runs kernel `k` of this body on a copy of `input`, whose address is `%rd1`, and gives `words` words that it wrote
/// to `%rd2`; they begin as zeros. `%r0` is the thread, `%rd3` the address of its word, `room` shared memory.
fn run(body: &str, shape: Shape, input: &[u32], words: usize) -> Result<Vec<u32>, Fault> {
    let text = format!(
        ".extern .shared .align 16 .b8 room[];\n.visible .entry k(.param .u64 in, .param .u64 out)\n{{
        .reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<40>; .reg .b64 %rd<20>;
        ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
        mov.u32 %r0, %tid.x; mul.wide.u32 %rd3, %r0, 4; add.s64 %rd3, %rd2, %rd3;
        {body}
        }}"
    );
    let program = Program::parse(&text).expect("good PTX");
    let memory = Memory::new();
    let (bytes, room) = (input.len() as u64 * 4, words as u64 * 4);
    let from = memory.allocate(bytes.max(4)).expect("memory");
    let to = memory.allocate(room.max(4)).expect("memory");
    let at = |address: u64| std::ptr::with_exposed_provenance_mut::<u32>(address as usize);
    // SAFETY: both were allocated with room for as many words.
    unsafe {
        std::ptr::copy_nonoverlapping(input.as_ptr(), at(from), input.len());
        at(to).write_bytes(0, words);
    }
    let params = [from.to_le_bytes(), to.to_le_bytes()].concat();
    launch(
        &Launch {
            kernel: &program.kernels[0],
            grid: [shape.blocks, 1, 1],
            block: [shape.threads, 1, 1],
            cluster: [shape.cluster, 1, 1],
            cooperative: shape.cooperative,
            dynamic_shared: shape.shared,
            params: &params,
        },
        &memory,
    )?;
    // SAFETY: as above.
    Ok(unsafe { std::slice::from_raw_parts(at(to), words) }.to_vec())
}

/// What a block of `threads` threads, each of which leaves a word in `%r1`, computes.
fn words(threads: u32, body: &str) -> Vec<u32> {
    let body = format!("{body}\nst.global.b32 [%rd3], %r1;");
    run(&body, Shape::block(threads), &[], threads as usize).unwrap_or_else(|why| panic!("{why:?}"))
}

/// What a body that leaves a result in register `result` makes of each of `cases`: in `%r1`, `%r2` and `%r3`, and in
/// `%rd11` to `%rd13` and `%rs1` to `%rs3`.
fn map(body: &str, result: &str, cases: &[[u64; 3]]) -> Vec<u64> {
    let wide = match result.trim_end_matches(|c: char| c.is_ascii_digit()) {
        "%rs" => format!("cvt.u64.u16 %rd10, {result};"),
        "%r" => format!("cvt.u64.u32 %rd10, {result};"),
        "%p" => format!("selp.b64 %rd10, 1, 0, {result};"),
        _ => format!("mov.b64 %rd10, {result};"),
    };
    let mut load = String::new();
    for i in 1..=3 {
        load += &format!(
            "ld.global.b64 %rd1{i}, [%rd5+{}]; cvt.u32.u64 %r{i}, %rd1{i}; cvt.u16.u64 %rs{i}, %rd1{i};\n",
            8 * (i - 1)
        );
    }
    let body = format!(
        "mov.u32 %r30, %ctaid.x; mad.lo.s32 %r31, %r30, 256, %r0; mul.wide.u32 %rd4, %r31, 24;
        add.s64 %rd5, %rd1, %rd4; setp.ge.u32 %p8, %r31, {}; @%p8 exit;
        {load} {body} {wide}
        mul.wide.u32 %rd4, %r31, 8; add.s64 %rd5, %rd2, %rd4; st.global.b64 [%rd5], %rd10;",
        cases.len()
    );
    let input: Vec<u32> =
        cases.iter().flatten().flat_map(|x| [*x as u32, (*x >> 32) as u32]).collect();
    let blocks = cases.len().div_ceil(256) as u32;
    let shape = Shape { blocks, ..Shape::block(256) };
    let out = run(&body, shape, &input, cases.len() * 2).unwrap_or_else(|why| panic!("{why:?}"));
    out.chunks_exact(2).map(|x| u64::from(x[1]) << 32 | u64::from(x[0])).collect()
}

/// The body's result is what `expected` says, for all triples of `values`.
fn agrees(body: &str, result: &str, values: [&[u64]; 3], expected: impl Fn(u64, u64, u64) -> u64) {
    let mut cases = Vec::new();
    for a in values[0] {
        for b in values[1] {
            cases.extend(values[2].iter().map(|c| [*a, *b, *c]));
        }
    }
    for (case, found) in cases.iter().zip(map(body, result, &cases)) {
        let [a, b, c] = *case;
        let right = expected(a, b, c);
        assert_eq!(found, right, "{body} of {a:#x}, {b:#x}, {c:#x}: {found:#x}, not {right:#x}");
    }
}

/// A body's results are those of a table: operands, result.
fn gives(body: &str, result: &str, table: &[(&[u64], u64)]) {
    let full = |list: &[u64]| std::array::from_fn(|i| list.get(i).copied().unwrap_or(0));
    let cases: Vec<[u64; 3]> = table.iter().map(|(operands, _)| full(operands)).collect();
    for ((operands, right), found) in table.iter().zip(map(body, result, &cases)) {
        assert_eq!(found, *right, "{body} of {operands:x?}: {found:#x}, not {right:#x}");
    }
}
