//! What a kernel must not do, and what is said about it.

use super::super::{FAILED, ILLEGAL_ADDRESS, MISALIGNED, TIMEOUT};
use super::{Shape, run};

/// The body ends with this code and a message with the kernel, and all of `parts`.
fn fails(body: &str, shape: Shape, code: i32, parts: &[&str]) {
    let fault = run(body, shape, &[1, 2, 3, 4, 5], 64).expect_err(body);
    let message = &fault.message;
    assert_eq!(fault.code, code, "{body}: {message}");
    for part in ["k: "].iter().chain(parts) {
        assert!(message.contains(part), "{body}: no `{part}` in: {message}");
    }
}

/// As [`fails`], for a block of 64 threads.
fn block_fails(body: &str, code: i32, parts: &[&str]) {
    fails(body, Shape::block(64), code, parts);
}

#[test]
fn accesses_outside_of_an_allocation() {
    let body = "setp.eq.u32 %p1, %r0, 37; @%p1 ld.global.b32 %r1, [%rd1+20];";
    let parts = ["block [0, 0, 0], thread 37", "past the end", "@%p1 ld.global.b32 %r1, [%rd1+20]"];
    block_fails(body, ILLEGAL_ADDRESS, &parts);
    // One byte past, and one before.
    let parts = ["thread 0", "0 bytes past the end of an allocation of 20 bytes", "ld.global.u8"];
    block_fails("ld.global.u8 %r1, [%rd1+20];", ILLEGAL_ADDRESS, &parts);
    block_fails("ld.global.u8 %r1, [%rd1+-1];", ILLEGAL_ADDRESS, &["1 bytes before"]);
    block_fails("st.global.b8 [%rd2+256], %r0;", ILLEGAL_ADDRESS, &["st.global.b8"]);
    let parts = ["8 bytes", "only 4 are before the end"];
    block_fails(
        "add.s64 %rd4, %rd1, 16; ld.global.v2.b32 {%r1, %r2}, [%rd4];",
        ILLEGAL_ADDRESS,
        &parts,
    );
    block_fails("mov.u64 %rd4, -4; ld.global.b32 %r1, [%rd4];", ILLEGAL_ADDRESS, &["4 bytes at"]);
    block_fails("atom.global.add.u32 %r1, [%rd1+20], 1;", ILLEGAL_ADDRESS, &["atom"]);
    block_fails("red.global.max.u64 [%rd1+24], %rd2;", ILLEGAL_ADDRESS, &["red.global"]);
    // The instruction ran well for another lane before.
    let body = "mul.wide.u32 %rd4, %r0, 4; add.s64 %rd4, %rd1, %rd4; ld.global.b32 %r1, [%rd4];";
    block_fails(body, ILLEGAL_ADDRESS, &["thread 5"]);
}

#[test]
fn accesses_that_are_not_aligned() {
    block_fails("ld.global.b32 %r1, [%rd1+2];", MISALIGNED, &["thread 0", "no multiple"]);
    block_fails("ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1+4];", MISALIGNED, &["16 bytes"]);
    block_fails("st.global.b16 [%rd2+1], %r0;", MISALIGNED, &["st.global.b16"]);
    block_fails("ld.shared.b32 %r1, [room+2];", MISALIGNED, &["shared memory"]);
    block_fails("atom.shared.add.u32 %r1, [room+1], 1;", MISALIGNED, &["shared memory"]);
}

#[test]
fn accesses_outside_of_shared_memory() {
    let parts = ["thread 0", "4 bytes at 4096 of 4096 bytes", "ld.shared.b32"];
    block_fails("ld.shared.b32 %r1, [room+4096];", ILLEGAL_ADDRESS, &parts);
    block_fails("st.shared.b8 [room+4096], %r0;", ILLEGAL_ADDRESS, &["1 bytes at 4096"]);
    let body = "mov.u32 %r1, 0; st.shared.b32 [%r1+-4], %r0;";
    block_fails(body, FAILED, &["another block's", "[%r1+-4]"]);
    let body = "mov.u32 %r1, 2; mapa.shared::cluster.u32 %r2, %r1, 2;";
    fails(body, Shape::cluster(2, 1), FAILED, &["rank 2", "mapa"]);
    let body = "mov.u32 %r1, 16; mapa.shared::cluster.u32 %r2, %r1, 1; ld.shared.b32 %r3, [%r2];";
    fails(body, Shape::cluster(2, 1), FAILED, &["another block's"]);
    let body = "mov.u32 %r1, room; ldmatrix.sync.aligned.m8n8.x4.b16 {%r2, %r3, %r4, %r5}, [%r1];";
    block_fails(body, FAILED, &["no generic address"]);
    block_fails("mov.u64 %rd4, 64; ld.param.b64 %rd5, [%rd4];", FAILED, &["parameters"]);
}

#[test]
fn memory_of_a_block_that_has_ended() {
    let body = "mov.u32 %r1, %cluster_ctarank; setp.eq.u32 %p1, %r1, 1; @%p1 exit;
        mov.u32 %r2, 0; SPIN: add.s32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 9000; @%p2 bra SPIN;
        mov.u32 %r3, room; mapa.shared::cluster.u32 %r4, %r3, 1; ld.shared::cluster.b32 %r5, [%r4];";
    fails(body, Shape::cluster(2, 1), FAILED, &["has ended", "ld.shared::cluster.b32"]);
}

#[test]
fn traps_and_tables() {
    let parts = ["block [0, 0, 0], thread 63: a trap", "@%p1 trap"];
    block_fails("setp.eq.u32 %p1, %r0, 63; @%p1 trap;", FAILED, &parts);
    let body = "T: .branchtargets A; brx.idx %r0, T; A: ret;";
    block_fails(body, FAILED, &["thread 1: branch 1 of 1", "brx.idx"]);
    let body = "setp.eq.u32 %p1, %r0, 1; @%p1 bra.uni A; A: ret;";
    block_fails(body, FAILED, &["thread 1", "uniform", "bra.uni"]);
}

#[test]
fn barriers_that_never_open() {
    let half = "and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 0;";
    // Half of a warp is elsewhere.
    let body = format!("{half} @%p1 bra A; bar.sync 0; ret; A: bar.sync 0; ret;");
    block_fails(&body, TIMEOUT, &["nothing can go on", "warp 0, lanes 0xaaaaaaaa", "bar.sync 0"]);
    block_fails(&format!("{half} @%p1 bar.sync 0;"), TIMEOUT, &["Lanes at @%p1 bar.sync 0"]);
    // One warp is at another barrier.
    let body = "shr.u32 %r1, %r0, 5; bar.sync %r1; trap;";
    block_fails(body, TIMEOUT, &["warp 1, lanes 0xffffffff: Barrier(1, 0) at bar.sync %r1"]);
    block_fails("bar.sync 1, 96;", TIMEOUT, &["bar.sync 1, 96"]);
    // One warp does not arrive, or arrives where nobody waits.
    let body = "setp.lt.u32 %p1, %r0, 32; @%p1 ret; bar.sync 1, 64;";
    block_fails(body, TIMEOUT, &["warp 1", "bar.sync 1, 64"]);
    let body = "setp.lt.u32 %p1, %r0, 32; @%p1 bra A; bar.sync 1, 64; ret; A: bar.arrive 2, 64;";
    block_fails(body, TIMEOUT, &["warp 1", "bar.sync 1, 64"]);
    block_fails("bar.arrive 1, 33;", FAILED, &["33 threads"]);
    block_fails("bar.sync 16;", FAILED, &["barrier 16"]);
    block_fails("bar.sync 1, 33;", FAILED, &["33 threads"]);
    block_fails("bar.sync 1, 0;", FAILED, &["nobody"]);
    let body = "setp.lt.u32 %p1, %r0, 32; @%p1 bra A; bar.sync 1, 64; A: bar.sync 1, 96;";
    block_fails(body, FAILED, &["barrier 1 of"]);
}

#[test]
fn words_that_nobody_writes() {
    // All warps poll; or one does, one waits at an mbarrier and one at a barrier.
    let poll =
        "POLL: ld.relaxed.gpu.global.b32 %r1, [%rd2]; setp.eq.u32 %p1, %r1, 0; @%p1 bra POLL;";
    let shape = Shape { blocks: 2, cooperative: true, ..Shape::block(96) };
    fails(poll, shape, TIMEOUT, &["nothing can go on", "block [1, 0, 0], warp 2"]);
    let body = format!(
        "setp.ne.u32 %p2, %r0, 0; @%p2 bra MEET; mbarrier.init.shared.b64 [room], 1;
        MEET: bar.sync 0; setp.lt.u32 %p2, %r0, 32; @%p2 bra POLL;
        setp.lt.u32 %p2, %r0, 64; @%p2 bra WAIT; bar.sync 0;
        WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [room], 0; @!%p2 bra WAIT; {poll}"
    );
    let parts = [
        "warp 1, lanes 0xffffffff: Retry at mbarrier.try_wait",
        "warp 2, lanes 0xffffffff: Barrier(0, 1)",
    ];
    fails(&body, shape, TIMEOUT, &parts);
}

#[test]
fn barriers_of_a_cluster() {
    let shape = Shape::cluster(2, 1);
    let body = "mov.u32 %r1, %cluster_ctarank; setp.eq.u32 %p1, %r1, 0; @%p1 bra A;
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; ret; A: bar.sync 1, 64;";
    fails(body, shape, TIMEOUT, &["block [1, 0, 0]", "Retry at barrier.cluster.wait.aligned"]);
    fails("barrier.cluster.wait.aligned;", shape, FAILED, &["without an arrival"]);
    let body = "barrier.cluster.arrive.aligned; barrier.cluster.arrive.aligned;";
    fails(body, shape, FAILED, &["again"]);
}

#[test]
fn lanes_that_are_not_there() {
    let body = "setp.lt.u32 %p1, %r0, 16; @!%p1 bra A;
        shfl.sync.idx.b32 %r1, %r0, 20, 31, 0xffff; A: ret;";
    let parts = ["thread 0: lane 20 is not here", "shfl.sync.idx.b32 %r1, %r0, 20"];
    block_fails(body, FAILED, &parts);
    let body = "setp.eq.u32 %p1, %r0, 3; @%p1 exit; shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1;";
    block_fails(body, FAILED, &["thread 2: lane 3 is not here"]);
    let body = "shfl.sync.bfly.b32 %r1, %r0, 1, 31, 0xfffffffe;";
    block_fails(body, FAILED, &["thread 0", "does not name"]);
    let body = "setp.lt.u32 %p1, %r0, 16; selp.b32 %r2, 0xffff, -1, %p1; bar.warp.sync %r2;";
    block_fails(body, FAILED, &["thread 16", "another mask"]);
    // A lane that never comes.
    let body = "setp.eq.u32 %p1, %r0, 3; @%p1 bra A; vote.sync.ballot.b32 %r1, 1, -1; ret;
        A: bar.sync 0;";
    block_fails(body, TIMEOUT, &["lanes 0xfffffff7: Lanes at vote.sync", "lanes 0x00000008"]);
}

#[test]
fn writes_before_the_kernel_before_is_done() {
    let wait = "griddepcontrol.wait;";
    let parts = ["thread 0: writes before griddepcontrol.wait", "st.global.b32 [%rd3], %r0"];
    block_fails(&format!("st.global.b32 [%rd3], %r0; {wait}"), FAILED, &parts);
    block_fails(&format!("atom.global.add.u32 %r1, [%rd2], 1; {wait}"), FAILED, &["writes before"]);
    block_fails(&format!("red.global.max.u64 [%rd2], %rd1; {wait}"), FAILED, &["writes before"]);
    // One lane has not waited.
    let body = format!("setp.ne.u32 %p1, %r0, 9; @%p1 {wait} st.global.b32 [%rd3], %r0;");
    block_fails(&body, FAILED, &["thread 9"]);
    let good = format!("ld.global.b32 %r1, [%rd1]; {wait} st.global.b32 [%rd3], %r0;");
    assert!(run(&good, Shape::block(64), &[1], 64).is_ok());
}

#[test]
fn barriers_in_memory() {
    let init = "setp.ne.u32 %p1, %r0, 0; @%p1 exit; mbarrier.init.shared.b64 [room], 2;";
    let wait = "WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [room], 0; @!%p2 bra WAIT;";
    let arrive = "mbarrier.arrive.shared.b64 _, [room];";
    let expect = "mbarrier.arrive.expect_tx.shared.b64 _, [room], 16;";
    // An arrival is missing, or bytes are.
    let parts = ["warp 0, lanes 0x00000001: Retry at mbarrier.try_wait"];
    block_fails(&format!("{init} {arrive} {wait}"), TIMEOUT, &parts);
    block_fails(&format!("{init} {arrive} {expect} {wait}"), TIMEOUT, &parts);
    let parts = ["thread 0: an arrival too many", "mbarrier.arrive.shared.b64 _, [room]"];
    block_fails(&format!("{init} {expect} {arrive} {arrive}"), FAILED, &parts);
    let none = ["no mbarrier was initialised at 0"];
    block_fails(arrive, FAILED, &none);
    block_fails(wait, FAILED, &none);
    let body = format!("{init} mbarrier.inval.shared.b64 [room]; {arrive}");
    block_fails(&body, FAILED, &none);
    block_fails("mbarrier.init.shared.b64 [room], 0;", FAILED, &["nobody"]);
    block_fails("mbarrier.init.shared.b64 [room+4], 1;", MISALIGNED, &["8 bytes at 4"]);
}

#[test]
fn copies_that_go_wrong() {
    let end = "cp.async.commit_group; cp.async.wait_group 0;";
    let copy = |what: &str| format!("setp.ne.u32 %p1, %r0, 0; @%p1 exit; {what} {end}");
    let past = copy("cp.async.ca.shared.global [room], [%rd1+20], 4;");
    block_fails(&past, ILLEGAL_ADDRESS, &["thread 0: cp.async", "past the end"]);
    let odd = copy("cp.async.ca.shared.global [room], [%rd1+4], 8;");
    block_fails(&odd, FAILED, &["a copy of 8 bytes"]);
    let far = copy("cp.async.cg.shared.global [room+4096], [%rd1], 16;");
    block_fails(&far, ILLEGAL_ADDRESS, &["16 bytes at 4096"]);
    let long = copy("mov.u32 %r1, 9; cp.async.ca.shared.global [room], [%rd1], 8, %r1;");
    block_fails(&long, FAILED, &["9 of 8 bytes"]);
    let bulk = |to: u32, from: &str, bytes: u32| {
        format!(
            "setp.ne.u32 %p1, %r0, 0; @%p1 exit; mbarrier.init.shared.b64 [room], 1;
            mbarrier.arrive.expect_tx.shared.b64 _, [room], {bytes};
            cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], [{from}], {bytes}, [room];
            WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [room], 0; @!%p2 bra WAIT;"
        )
    };
    let parts = ["thread 0", "asked for by instruction", "cp.async.bulk"];
    block_fails(&bulk(16, "%rd1", 32), ILLEGAL_ADDRESS, &parts);
    block_fails(&bulk(16, "%rd1", 24), FAILED, &["24 bytes"]);
    block_fails(&bulk(16, "%rd1+4", 16), FAILED, &["16 bytes"]);
    block_fails(&bulk(4096, "%rd1", 16), ILLEGAL_ADDRESS, &["16 bytes at 4096"]);
    let nobody = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [room], [%rd1], 16, [room];";
    block_fails(nobody, FAILED, &["no mbarrier"]);
}
