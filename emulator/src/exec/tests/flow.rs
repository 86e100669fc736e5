//! Lanes that go different ways.

use super::{Shape, run, words};

#[test]
fn both_sides_of_a_branch_run() {
    let body = "setp.lt.u32 %p1, %r0, 10; @%p1 bra LESS; mov.u32 %r1, 2; bra END;
        LESS: mov.u32 %r1, 1; END: add.s32 %r1, %r1, %r0;";
    let expected: Vec<u32> = (0..50).map(|i| if i < 10 { 1 + i } else { 2 + i }).collect();
    assert_eq!(words(50, body), expected);
}

#[test]
fn lanes_that_met_again_vote_together() {
    let body = "and.b32 %r2, %r0, 1; setp.ne.u32 %p1, %r2, 0; @!%p1 bra EVEN; mov.u32 %r3, 5;
        bra END; EVEN: mov.u32 %r3, 6; END: setp.eq.u32 %p2, %r3, 5;
        vote.sync.ballot.b32 %r1, %p2, -1;";
    assert_eq!(words(32, body), [0xaaaa_aaaa; 32]);
}

#[test]
fn loops_end_for_each_lane_by_itself() {
    // The sum of 0..=thread, by thread + 1 rounds.
    let body = "mov.u32 %r1, 0; mov.u32 %r2, 0; AGAIN: add.s32 %r1, %r1, %r2; add.s32 %r2, %r2, 1;
        setp.le.u32 %p1, %r2, %r0; @%p1 bra AGAIN;";
    let expected: Vec<u32> = (0..100).map(|i| i * (i + 1) / 2).collect();
    assert_eq!(words(100, body), expected);
}

#[test]
fn loops_and_branches_nest() {
    // How many pairs i < j <= thread have an odd sum.
    let body = "mov.u32 %r1, 0; mov.u32 %r2, 0;
        OUTER: add.s32 %r3, %r2, 1;
        INNER: setp.gt.u32 %p1, %r3, %r0; @%p1 bra NEXT;
        add.s32 %r4, %r2, %r3; and.b32 %r4, %r4, 1; setp.eq.u32 %p2, %r4, 0; @%p2 bra SKIP;
        add.s32 %r1, %r1, 1;
        SKIP: add.s32 %r3, %r3, 1; bra INNER;
        NEXT: add.s32 %r2, %r2, 1; setp.lt.u32 %p3, %r2, %r0; @%p3 bra OUTER;";
    let count = |last: u32| {
        let pairs = (0..=last).flat_map(|i| (i + 1..=last).map(move |j| i + j));
        pairs.filter(|sum| sum % 2 == 1).count() as u32
    };
    assert_eq!(words(33, body), (0..33).map(count).collect::<Vec<_>>());
}

#[test]
fn a_table_sends_each_lane_its_way() {
    let body = "rem.u32 %r2, %r0, 3; mov.u32 %r1, 0;
        T: .branchtargets A, B, C; brx.idx %r2, T;
        A: add.s32 %r1, %r1, 1; B: add.s32 %r1, %r1, 10; C: add.s32 %r1, %r1, 100;
        vote.sync.ballot.b32 %r3, 1, -1; setp.ne.u32 %p1, %r3, -1; @%p1 trap;";
    let expected: Vec<u32> = (0..32).map(|i| [111, 110, 100][i % 3]).collect();
    assert_eq!(words(32, body), expected);
}

#[test]
fn a_guarded_table_lets_others_go_on() {
    let body = "and.b32 %r2, %r0, 1; setp.ge.u32 %p1, %r0, 4; mov.u32 %r1, 0;
        T: .branchtargets A, B; @%p1 brx.idx %r2, T; mov.u32 %r1, 7; bra END;
        A: mov.u32 %r1, 1; bra END; B: mov.u32 %r1, 2; END:";
    let expected: Vec<u32> = (0..32).map(|i| if i < 4 { 7 } else { 1 + i % 2 }).collect();
    assert_eq!(words(32, body), expected);
}

#[test]
fn lanes_that_have_ended_are_not_waited_for() {
    let body = "mov.u32 %r1, 9; st.global.b32 [%rd3], %r1; and.b32 %r2, %r0, 3;
        setp.eq.u32 %p1, %r2, 0; @%p1 exit; @%p1 trap;
        vote.sync.ballot.b32 %r1, 1, -1; bar.sync 0;
        st.global.b32 [%rd3], %r1; ret;";
    let found = run(body, Shape::block(64), &[], 64).expect("no fault");
    let expected: Vec<u32> = (0..64).map(|i| if i % 4 == 0 { 9 } else { 0xeeee_eeee }).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_lane_that_spins_does_not_stop_the_one_it_waits_for() {
    // Lane 0 waits for what lane 1 writes, which stands behind it.
    let body = "setp.ne.u32 %p1, %r0, 0; @%p1 bra WRITE;
        SPIN: ld.volatile.global.b32 %r2, [%rd2+8]; setp.eq.u32 %p2, %r2, 0; @%p2 bra SPIN;
        st.global.b32 [%rd2], %r2; ret;
        WRITE: mov.u32 %r3, 77; st.global.b32 [%rd2+8], %r3; ret;";
    assert_eq!(run(body, Shape::block(2), &[], 3).expect("no fault"), [77, 0, 77]);
}

#[test]
fn special_registers_say_where_a_thread_is() {
    let shape = Shape { blocks: 6, cluster: 2, ..Shape::block(40) };
    let body = "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.s32 %r3, %r1, %r2, %r0;
        mov.u32 %r4, %cluster_ctarank; mov.u32 %r5, %clusterid.x; mov.u32 %r6, %laneid;
        mov.u32 %r7, %nctaid.x; mov.u32 %r8, %cluster_nctarank; mov.u32 %r9, %nclusterid.x;
        mov.u32 %r10, %tid.y; mov.u32 %r11, %ntid.z;
        mad.lo.s32 %r12, %r5, 10, %r4; mad.lo.s32 %r12, %r12, 100, %r6;
        mad.lo.s32 %r12, %r12, 10, %r7; mad.lo.s32 %r12, %r12, 10, %r8;
        mad.lo.s32 %r12, %r12, 10, %r9; mad.lo.s32 %r12, %r12, 10, %r10;
        mad.lo.s32 %r12, %r12, 10, %r11;
        mul.wide.u32 %rd4, %r3, 4; add.s64 %rd4, %rd2, %rd4; st.global.b32 [%rd4], %r12;";
    let expected = (0..240).map(|i| {
        let (block, thread) = (i / 40, i % 40);
        ((block / 2 * 10 + block % 2) * 100 + thread % 32) * 100_000 + 62_301
    });
    assert_eq!(run(body, shape, &[], 240).expect("no fault"), expected.collect::<Vec<u32>>());
}

#[test]
fn the_clock_goes_on() {
    let body = "mov.u64 %rd4, %clock64; AGAIN: mov.u64 %rd5, %clock64; sub.s64 %rd6, %rd5, %rd4;
        setp.lt.u64 %p1, %rd6, 2000000; @%p1 bra AGAIN; mov.u32 %r1, 1;";
    let start = std::time::Instant::now();
    assert_eq!(words(1, body), [1]);
    assert!(start.elapsed().as_micros() >= 1000, "two ticks are at least a nanosecond");
}
