//! Lanes of a warp that exchange something.

use super::words;

/// Which lane each of 32 lanes reads, as the PTX manual says it; `clamp` holds the segment above.
fn reads(how: &str, b: u32, clamp: u32) -> Vec<u32> {
    let segment = clamp >> 8 & 31;
    let of = |lane: u32| {
        let (low, high) = (lane & segment, (lane & segment) | (clamp & 31 & !segment));
        let (from, inside) = match how {
            "up" => (lane.wrapping_sub(b), lane >= b + high),
            "down" => (lane + b, lane + b <= high),
            "bfly" => (lane ^ b, lane ^ b <= high),
            _ => (low | (b & !segment), low | (b & !segment) <= high),
        };
        if inside { from } else { lane }
    };
    (0..32).map(of).collect()
}

#[test]
fn shuffles_read_the_lane_that_the_manual_says() {
    for how in ["up", "down", "bfly", "idx"] {
        for b in [0, 1, 2, 3, 7, 15, 16, 31] {
            // Whole warps, segments of 16, 8, 4 and 2, and a clamp in the middle.
            for segment in [0, 0x1000, 0x1800, 0x1c00, 0x1e00] {
                for end in [0, 31, 5] {
                    let clamp = segment | end;
                    let body = format!(
                        "add.s32 %r2, %r0, 1000; shfl.sync.{how}.b32 %r1, %r2, {b}, {clamp}, -1;"
                    );
                    let expected: Vec<u32> =
                        reads(how, b, clamp).iter().map(|lane| lane + 1000).collect();
                    assert_eq!(words(32, &body), expected, "{body}");
                }
            }
        }
    }
}

#[test]
fn known_shuffles() {
    let first = |body: &str| words(32, body);
    let sum = "mov.u32 %r1, %r0;
        shfl.sync.bfly.b32 %r2, %r1, 16, 31, -1; add.s32 %r1, %r1, %r2;
        shfl.sync.bfly.b32 %r2, %r1, 8, 31, -1; add.s32 %r1, %r1, %r2;
        shfl.sync.bfly.b32 %r2, %r1, 4, 31, -1; add.s32 %r1, %r1, %r2;
        shfl.sync.bfly.b32 %r2, %r1, 2, 31, -1; add.s32 %r1, %r1, %r2;
        shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1; add.s32 %r1, %r1, %r2;";
    assert_eq!(first(sum), [496; 32]);
    let up = first("shfl.sync.up.b32 %r1, %r0, 1, 0, -1;");
    assert_eq!(up, (0..32_u32).map(|i| i.saturating_sub(1)).collect::<Vec<_>>());
    let idx = first("shfl.sync.idx.b32 %r1, %r0, 2, 0x181f, -1;");
    assert_eq!(idx, (0..32).map(|i| i / 8 * 8 + 2).collect::<Vec<_>>());
    // The lane may differ by lane.
    let mirror = first("sub.s32 %r2, 31, %r0; shfl.sync.idx.b32 %r1, %r0, %r2, 31, -1;");
    assert_eq!(mirror, (0..32).rev().collect::<Vec<_>>());
}

#[test]
fn parts_of_a_warp_are_by_themselves() {
    let body = "setp.lt.u32 %p1, %r0, 8; setp.eq.u32 %p2, %r0, 3; @%p1 bra FIRST;
        shfl.sync.bfly.b32 %r1, %r0, 1, 31, 0xffffff00; redux.sync.add.s32 %r2, %r0, 0xffffff00;
        vote.sync.ballot.b32 %r3, %p2, 0xffffff00; bar.warp.sync 0xffffff00; bra END;
        FIRST: shfl.sync.bfly.b32 %r1, %r0, 2, 31, 0xff; redux.sync.add.s32 %r2, %r0, 0xff;
        vote.sync.ballot.b32 %r3, %p2, 0xff; bar.warp.sync 0xff;
        END: mad.lo.s32 %r1, %r2, 100, %r1; mad.lo.s32 %r1, %r3, 100000, %r1;";
    let expected: Vec<u32> =
        (0..32).map(|i| if i < 8 { 802_800 + (i ^ 2) } else { 46_800 + (i ^ 1) }).collect();
    assert_eq!(words(32, body), expected);
}

#[test]
fn votes_and_sums() {
    let odd = "and.b32 %r2, %r0, 1; setp.ne.u32 %p1, %r2, 0;";
    let ballot = format!("{odd} vote.sync.ballot.b32 %r1, %p1, -1;");
    // The second warp has eight lanes.
    let expected: Vec<u32> = (0..40).map(|i| if i < 32 { 0xaaaa_aaaa } else { 0xaa }).collect();
    assert_eq!(words(40, &ballot), expected);
    let any = "setp.eq.u32 %p1, %r0, 5; vote.sync.any.pred %p2, %p1, -1; selp.b32 %r1, 1, 0, %p2;";
    let expected: Vec<u32> = (0..64).map(|i| u32::from(i < 32)).collect();
    assert_eq!(words(64, any), expected);
    let sum = "sub.s32 %r2, %r0, 20; redux.sync.add.s32 %r1, %r2, -1;";
    assert_eq!(words(32, sum), [496_u32.wrapping_sub(640); 32]);
    let most = "sub.s32 %r2, %r0, 20; redux.sync.max.u32 %r1, %r2, -1;";
    assert_eq!(words(32, most), [u32::MAX; 32]);
}
