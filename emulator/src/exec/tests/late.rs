//! What is done some time after it was asked for.

use super::{Shape, run};

fn good(body: &str, shape: Shape, input: &[u32], words: usize) -> Vec<u32> {
    run(body, shape, input, words).unwrap_or_else(|why| panic!("{}", why.message))
}

const POISON: u32 = 0xa5a5_a5a5;

/// A lane that reads too early finds what was there before, and is at fault.
fn reads_too_early(body: &str, shape: Shape) {
    let body = format!(
        "mov.u32 %r1, room; {body} setp.ne.u32 %p3, %r2, 0xa5a5a5a5; @%p3 trap;
        cp.async.commit_group; cp.async.wait_group 0;"
    );
    let fault = run(&body, shape, &[5; 8], 1).expect_err("a race");
    assert!(fault.message.contains("a race on address"), "{}", fault.message);
}

#[test]
fn copies_are_there_when_their_group_is_waited_for() {
    let body = "cp.async.cg.shared.global [room], [%rd1], 16; cp.async.commit_group;
        cp.async.ca.shared.global [room+16], [%rd1+16], 4; cp.async.commit_group;
        cp.async.wait_group 1; ld.shared.b32 %r2, [room+12]; st.global.b32 [%rd2], %r2;
        cp.async.wait_group 0; ld.shared.b32 %r3, [room+16]; st.global.b32 [%rd2+4], %r3;
        cp.async.wait_group 7;";
    assert_eq!(good(body, Shape::block(1), &[10, 11, 12, 13, 14], 2), [13, 14]);
    reads_too_early(
        "cp.async.ca.shared.global [room], [%rd1], 4; cp.async.commit_group; ld.shared.b32 %r2, [room];",
        Shape::block(1),
    );
    reads_too_early(
        "cp.async.ca.shared.global [room], [%rd1], 4; cp.async.commit_group;
        cp.async.ca.shared.global [room+4], [%rd1], 4; cp.async.commit_group;
        cp.async.wait_group 1; ld.shared.b32 %r2, [room+4];",
        Shape::block(1),
    );
}

#[test]
fn an_open_group_is_not_waited_for() {
    reads_too_early(
        "cp.async.ca.shared.global [room], [%rd1], 4; cp.async.wait_group 0; ld.shared.b32 %r2, [room];",
        Shape::block(1),
    );
}

#[test]
fn each_lane_has_its_own_groups() {
    // Lane 1 has closed one group more than lane 0.
    let body = "shl.b32 %r1, %r0, 2; cp.async.ca.shared.global [%r1], [%rd1], 4;
        cp.async.commit_group; setp.eq.u32 %p1, %r0, 1; @%p1 cp.async.commit_group;
        cp.async.wait_group 1;";
    let read = "ld.shared.b32 %r2, [%r1];";
    let late = "cp.async.wait_group 0; @!%p1 ld.shared.b32 %r2, [%r1]; st.global.b32 [%rd3], %r2;";
    assert_eq!(good(&format!("{body} @%p1 {read} {late}"), Shape::block(2), &[5], 2), [5, 5]);
    reads_too_early(&format!("{body} mov.u32 %r2, 0xa5a5a5a5; @!%p1 {read}"), Shape::block(2));
}

#[test]
fn what_a_copy_does_not_read_is_zeros() {
    let body = "mov.u32 %r1, 6; mov.u32 %r2, 0; mov.u64 %rd9, 64;
        cp.async.ca.shared.global [room], [%rd1], 8, %r1;
        cp.async.cg.shared.global [room+16], [%rd9], 16, %r2; cp.async.commit_group;
        cp.async.wait_group 0; ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [room];
        st.global.v4.b32 [%rd2], {%r1, %r2, %r3, %r4};
        ld.shared.b32 %r1, [room+28]; st.global.b32 [%rd2+16], %r1;";
    let found = good(body, Shape::block(1), &[u32::MAX, u32::MAX], 5);
    assert_eq!(found, [u32::MAX, 0xffff, POISON, POISON, 0]);
}

#[test]
fn a_barrier_waits_for_arrivals_and_bytes() {
    // Thread 0 asks for 64 bytes; all wait and read; a second phase waits for all threads.
    let body = "mov.u32 %r20, room; setp.ne.u32 %p1, %r0, 0; @%p1 bra MEET;
        mbarrier.init.shared.b64 [%r20+512], 1; mbarrier.init.shared.b64 [%r20+520], 64;
        fence.mbarrier_init.release.cluster;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r20+512], 64;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r20], [%rd1], 64, [%r20+512];
        MEET: bar.sync 0;
        AGAIN: mbarrier.try_wait.parity.shared.b64 %p2, [%r20+512], 0; @!%p2 bra AGAIN;
        and.b32 %r1, %r0, 15; shl.b32 %r1, %r1, 2; ld.shared.b32 %r2, [%r1];
        shl.b32 %r3, %r0, 2; st.shared.b32 [%r3+1024], %r2;
        mbarrier.arrive.shared.b64 %rd9, [%r20+520];
        SECOND: mbarrier.try_wait.parity.shared.b64 %p2, [%r20+520], 0; @!%p2 bra SECOND;
        xor.b32 %r3, %r3, 132; ld.shared.b32 %r2, [%r3+1024]; st.global.b32 [%rd3], %r2;
        bar.sync 0; @%p1 exit; mbarrier.inval.shared.b64 [%r20+512];";
    let input: Vec<u32> = (100..116).collect();
    let expected: Vec<u32> = (0..64).map(|i| 100 + (i ^ 33) % 16).collect();
    assert_eq!(good(body, Shape::block(64), &input, 64), expected);
}

#[test]
fn phases_take_turns() {
    // Warp 0 fills, warp 1 sums, over two barriers of one arrival each.
    let body = "mov.u32 %r20, room; setp.ne.u32 %p1, %r0, 0;
        @%p1 bra MEET; mbarrier.init.shared.b64 [%r20], 1; mbarrier.init.shared.b64 [%r20+8], 1;
        MEET: bar.sync 0; mov.u32 %r1, 0; mov.u32 %r5, 0; setp.ge.u32 %p2, %r0, 32; @%p2 bra SUM;
        @%p1 exit;
        FILL: and.b32 %r2, %r1, 1; xor.b32 %r3, %r2, 1;
        EMPTY: mbarrier.try_wait.parity.shared.b64 %p3, [%r20+8], %r3; @!%p3 bra EMPTY;
        st.shared.b32 [%r20+16], %r1; mbarrier.arrive.shared.b64 _, [%r20];
        add.s32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 10; @%p3 bra FILL; ret;
        SUM: setp.ne.u32 %p4, %r0, 32; @%p4 exit;
        NEXT: and.b32 %r2, %r1, 1;
        FULL: mbarrier.try_wait.parity.shared.b64 %p3, [%r20], %r2; @!%p3 bra FULL;
        ld.shared.b32 %r4, [%r20+16]; mad.lo.s32 %r5, %r5, 3, %r4;
        mbarrier.arrive.shared.b64 _, [%r20+8];
        add.s32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 10; @%p3 bra NEXT; st.global.b32 [%rd2], %r5;";
    let expected = (0..10).fold(0, |sum, i| 3 * sum + i);
    assert_eq!(good(body, Shape::block(64), &[], 1), [expected]);
}

#[test]
fn lanes_wait_for_barriers_of_their_own() {
    // At one instruction: lane 0 for a barrier that has turned, the others for one that lane 0 turns.
    let body = "setp.ne.u32 %p1, %r0, 0; @%p1 bra MEET;
        mbarrier.init.shared.b64 [room], 1; mbarrier.init.shared.b64 [room+8], 1;
        mbarrier.arrive.shared.b64 _, [room];
        MEET: bar.sync 0; mov.u32 %r1, room; @%p1 add.s32 %r1, %r1, 8;
        WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 0; @!%p2 bra WAIT;
        @%p1 bra LEAVE; mbarrier.arrive.shared.b64 _, [room+8];
        LEAVE: bar.warp.sync -1; st.global.b32 [%rd3], %r1;";
    let found = good(body, Shape::block(32), &[], 32);
    assert!(found[1..].iter().all(|at| *at == found[0] + 8), "{found:?}");
}

#[test]
fn copies_of_lanes_arrive_when_they_are_there() {
    let body = "mov.u32 %r20, room; setp.ne.u32 %p1, %r0, 0; @%p1 bra MEET;
        mbarrier.init.shared.b64 [%r20+512], 32;
        MEET: bar.sync 0; setp.ge.u32 %p2, %r0, 32; @%p2 bra WAIT;
        shl.b32 %r1, %r0, 2; mul.wide.u32 %rd4, %r0, 4; add.s64 %rd4, %rd1, %rd4;
        cp.async.ca.shared.global [%r1], [%rd4], 4;
        cp.async.mbarrier.arrive.noinc.shared.b64 [%r20+512];
        ret;
        WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r20+512], 0; @!%p2 bra WAIT;
        sub.s32 %r1, %r0, 32; shl.b32 %r1, %r1, 2; ld.shared.b32 %r2, [%r1];
        st.global.b32 [%rd3], %r2;";
    let input: Vec<u32> = (100..132).collect();
    let found = good(body, Shape::block(64), &input, 64);
    assert_eq!(found[32..], input);
}

#[test]
fn a_remote_store_counts_its_bytes_there() {
    // Both threads of block 0 send a word to block 1, which waits for eight bytes.
    let body = "mov.u32 %r20, room; mov.u32 %r1, %cluster_ctarank; setp.eq.u32 %p1, %r1, 0;
        setp.ne.u32 %p3, %r0, 0; @%p1 bra MEET; @%p3 bra MEET;
        mbarrier.init.shared.b64 [%r20], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r20], 8;
        MEET: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; @!%p1 bra WAIT;
        mapa.shared::cluster.u32 %r2, %r20, 1; shl.b32 %r3, %r0, 2; add.s32 %r3, %r2, %r3;
        add.s32 %r4, %r0, 41;
        st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r3+16], %r4, [%r2]; ret;
        WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r20], 0; @!%p2 bra WAIT;
        ld.shared.v2.b32 {%r5, %r6}, [%r20+16]; st.global.v2.b32 [%rd2], {%r5, %r6};";
    assert_eq!(good(body, Shape::cluster(2, 2), &[], 2), [41, 42]);
}

#[test]
fn parameters_have_an_address() {
    let body = "mov.b64 %rd4, in; cvta.param.u64 %rd5, %rd4; ld.param.b64 %rd6, [%rd4+8];
        sub.s64 %rd7, %rd6, %rd2; cvt.u32.u64 %r1, %rd7; add.s32 %r1, %r1, 3;
        st.global.b32 [%rd2], %r1;";
    assert_eq!(good(body, Shape::block(1), &[], 1), [3]);
}
