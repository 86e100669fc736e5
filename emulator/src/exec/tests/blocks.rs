//! Warps of a block, blocks of a cluster, blocks of a cooperative launch.

use super::{Shape, run};

fn good(body: &str, shape: Shape, words: usize) -> Vec<u32> {
    run(body, shape, &[], words).unwrap_or_else(|why| panic!("{}", why.message))
}

/// `%r20`: the address of the thread's own word in `room`.
const PLACE: &str = "mov.u32 %r20, room; shl.b32 %r21, %r0, 2; add.s32 %r20, %r20, %r21;";

#[test]
fn a_barrier_shows_what_other_warps_wrote() {
    // Four rounds of "take the word of the thread 32 further".
    let body = format!(
        "{PLACE} add.s32 %r2, %r0, 32; rem.u32 %r2, %r2, 128; shl.b32 %r2, %r2, 2;
        mov.u32 %r1, %r0; mov.u32 %r3, 0;
        AGAIN: st.shared.b32 [%r20], %r1; bar.sync 0; ld.shared.b32 %r1, [%r2]; bar.sync 0;
        add.s32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 3; @%p1 bra AGAIN;
        st.global.b32 [%rd3], %r1;"
    );
    let expected: Vec<u32> = (0..128).map(|i| (i + 96) % 128).collect();
    assert_eq!(good(&body, Shape::block(128), 128), expected);
}

#[test]
fn named_barriers_are_for_some_warps() {
    // Warps 0 and 1 exchange through barrier 1, warps 2 and 3 through barrier 2, and warp 4 has ended.
    let body = format!(
        "{PLACE} setp.ge.u32 %p1, %r0, 128; @%p1 exit;
        shr.u32 %r2, %r0, 6; add.s32 %r2, %r2, 1; xor.b32 %r3, %r20, 128;
        st.shared.b32 [%r20], %r0; bar.sync %r2, 64; ld.shared.b32 %r1, [%r3];
        bar.sync 0; st.global.b32 [%rd3], %r1;"
    );
    let expected: Vec<u32> = (0..128).map(|i| i ^ 32).collect();
    assert_eq!(good(&body, Shape::block(160), 128), expected);
}

#[test]
fn ended_warps_are_not_waited_for() {
    // Warp 1 ends while warp 0 waits, after a while.
    let body = "setp.lt.u32 %p1, %r0, 32; @%p1 bra WAIT;
        mov.u32 %r2, 0; SPIN: add.s32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 9000; @%p2 bra SPIN; ret;
        WAIT: bar.sync 0; st.global.b32 [%rd3], %r0;";
    assert_eq!(good(body, Shape::block(64), 32), (0..32).collect::<Vec<_>>());
}

#[test]
fn atomics_lose_nothing() {
    let shape = Shape { blocks: 20, ..Shape::block(96) };
    let body = "mov.u32 %r9, room; setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.b32 [%r9], 0;
        bar.sync 0; atom.shared.add.u32 %r1, [%r9], 2; bar.sync 0; ld.shared.b32 %r2, [%r9];
        setp.ne.u32 %p2, %r2, 192; @%p2 trap;
        atom.global.add.u32 %r3, [%rd2], 1;
        mov.u32 %r4, %ctaid.x; mad.lo.s32 %r4, %r4, 96, %r0; cvt.u64.u32 %rd4, %r4;
        shl.b64 %rd4, %rd4, 20; red.global.max.u64 [%rd2+8], %rd4;";
    let most = 1919_u64 << 20;
    assert_eq!(good(body, shape, 4), [1920, 0, most as u32, (most >> 32) as u32]);
}

#[test]
fn blocks_of_a_cluster_read_and_write_each_other() {
    // Each block reads the word of the next one, and writes another word to the one after it.
    let body = "mov.u32 %r20, room; mov.u32 %r1, %cluster_ctarank; add.s32 %r2, %r1, 70;
        st.shared.b32 [%r20], %r2;
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        add.s32 %r3, %r1, 1; rem.u32 %r3, %r3, 4; mapa.shared::cluster.u32 %r4, %r20, %r3;
        mov.u32 %r5, 0; ld.shared::cluster.v4.b32 {%r5, _, _, _}, [%r4];
        add.s32 %r6, %r1, 2; rem.u32 %r6, %r6, 4; mapa.shared::cluster.u32 %r7, %r20, %r6;
        st.shared::cluster.b32 [%r7+16], %r2;
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        ld.shared.b32 %r8, [%r20+16]; mad.lo.s32 %r8, %r8, 1000, %r5;
        mov.u32 %r9, %ctaid.x; mul.wide.u32 %rd4, %r9, 4; add.s64 %rd4, %rd2, %rd4;
        st.global.b32 [%rd4], %r8;";
    let shape = Shape { blocks: 8, ..Shape::cluster(4, 32) };
    let expected: Vec<u32> = (0..8).map(|i| 1000 * (70 + (i + 2) % 4) + 70 + (i + 1) % 4).collect();
    assert_eq!(good(body, shape, 8), expected);
}

#[test]
fn a_cluster_waits_for_all_that_have_not_ended() {
    // Block 0 arrives and ends; block 1 ends; block 2 takes long before it arrives.
    let body = "mov.u32 %r20, room; mov.u32 %r1, %cluster_ctarank;
        setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r1, 1; setp.eq.u32 %p3, %r1, 3;
        @%p1 bra ARRIVE; @%p2 exit; @%p3 bra MEET;
        mov.u32 %r2, 0; SPIN: add.s32 %r2, %r2, 1; setp.lt.u32 %p4, %r2, 9000; @%p4 bra SPIN;
        st.shared.b32 [%r20], %r2;
        MEET: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        mov.u32 %r3, 2; mapa.shared::cluster.u32 %r4, %r20, %r3; ld.shared::cluster.b32 %r5, [%r4];
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        @%p3 st.global.b32 [%rd2], %r5; ret;
        ARRIVE: barrier.cluster.arrive.aligned; ret;";
    assert_eq!(good(body, Shape::cluster(4, 1), 1), [9000]);
}

#[test]
fn blocks_of_a_cooperative_launch_meet() {
    let shape = Shape { blocks: 40, cooperative: true, ..Shape::block(1) };
    let body = "atom.global.add.u32 %r1, [%rd2], 1;
        SPIN: ld.relaxed.gpu.global.b32 %r2, [%rd2]; setp.lt.u32 %p1, %r2, 40; @%p1 bra SPIN;
        atom.global.add.u32 %r3, [%rd2+4], %r2;";
    assert_eq!(good(body, shape, 2), [40, 1600]);
}

#[test]
fn who_computes_for_long_is_waited_for() {
    // Block 0 polls for a word, and a warp of block 1 waits at an mbarrier, for many more turns than polls may be in vain.
    let shape = Shape { blocks: 2, cooperative: true, ..Shape::block(64) };
    let body = "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; setp.ne.u32 %p2, %r0, 0;
        @%p1 bra POLL; @%p2 bra MEET; mbarrier.init.shared.b64 [room], 32;
        MEET: bar.sync 0; setp.ge.u32 %p3, %r0, 32; @%p3 bra WAIT;
        mov.u32 %r2, 0; SPIN: add.s32 %r2, %r2, 1; setp.lt.u32 %p4, %r2, 400000; @%p4 bra SPIN;
        mbarrier.arrive.shared.b64 _, [room]; ret;
        WAIT: mbarrier.try_wait.parity.shared.b64 %p4, [room], 0; @!%p4 bra WAIT;
        st.relaxed.gpu.global.b32 [%rd2], %r0; ret;
        POLL: ld.relaxed.gpu.global.b32 %r3, [%rd2]; setp.eq.u32 %p4, %r3, 0; @%p4 bra POLL;
        st.global.b32 [%rd2+4], %r3;";
    assert_eq!(good(body, shape, 2), [63, 63]);
}

#[test]
fn words_that_are_there_are_looked_at_one_after_another() {
    // Nobody else runs.
    let body = "mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u64 %rd4, %rd1;
        NEXT: ld.relaxed.gpu.global.b32 %r3, [%rd4]; add.s32 %r1, %r1, %r3; add.s64 %rd4, %rd4, 4;
        add.s32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 90; @%p1 bra NEXT; st.global.b32 [%rd2], %r1;";
    let input: Vec<u32> = (0..90).collect();
    assert_eq!(run(body, Shape::block(1), &input, 1).expect("no fault"), [4005]);
}

#[test]
fn elements_of_every_size_are_loaded_and_stored() {
    let body =
        "mov.u32 %r1, 0x8081f2f3; st.shared.b32 [room], %r1; mov.u64 %rd9, 0x8000000180000002;
        ld.shared.u8 %r2, [room+3]; st.global.b32 [%rd2], %r2;
        ld.shared.s8 %r2, [room+3]; st.global.b32 [%rd2+4], %r2;
        ld.shared.u16 %r2, [room+2]; st.global.b32 [%rd2+8], %r2;
        ld.shared.s16 %r2, [room+2]; st.global.b32 [%rd2+12], %r2;
        ld.shared.s8 %rs1, [room+3]; mov.b32 %r2, {%rs1, 0}; st.global.b32 [%rd2+16], %r2;
        ld.shared.s16 %rd4, [room+2]; st.global.b64 [%rd2+24], %rd4;
        ld.shared.s32 %rd4, [room]; st.global.b64 [%rd2+32], %rd4;
        ld.shared.u32 %rd4, [room]; st.global.b64 [%rd2+40], %rd4;
        st.global.v2.b64 [%rd2+48], {%rd9, 5}; ld.global.v2.b32 {_, %r3}, [%rd2+48];
        st.global.b8 [%rd2+64], %r1; st.global.b16 [%rd2+66], %r1;
        st.global.v2.b32 [%rd2+72], {%r3, -1};";
    let expected = [
        0x80,
        0xffff_ff80,
        0x8081,
        0xffff_8081,
        0xff80,
        0,
        0xffff_8081,
        0xffff_ffff,
        0x8081_f2f3,
        0xffff_ffff,
        0x8081_f2f3,
        0,
        0x8000_0002,
        0x8000_0001,
        5,
        0,
        0xf2f3_00f3,
        0,
        0x8000_0001,
        0xffff_ffff,
    ];
    assert_eq!(good(body, Shape::block(1), 20), expected);
}
