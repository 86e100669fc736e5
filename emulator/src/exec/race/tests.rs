//! Small kernels with and without their barriers.

use crate::exec::{Launch, launch};
use crate::memory::Memory;
use crate::ptx::Program;

/// Registers and what every kernel starts with: the warp in `%r2`, four times the thread's number in `%r3`.
const HEAD: &str = "
    .reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %rd<9>;
    mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; shl.b32 %r3, %r1, 2;
    mov.u32 %r4, %cluster_ctarank; setp.eq.u32 %p1, %r2, 0; setp.eq.u32 %p2, %r1, 0;
    ld.param.u64 %rd1, [x];
";

/// Runs `body` on `warps` warps of each of `cluster` blocks: the fault, or nothing.
fn run_on(cluster: u32, warps: u32, body: &str) -> Option<String> {
    let ptx = format!(
        ".version 8.0\n.target sm_90a\n.visible .entry k(.param .u64 x)\n{{{HEAD}{body}\nret;\n}}"
    );
    let program = Program::parse(&ptx).expect("PTX");
    let memory = Memory::new();
    let x = memory.allocate(4096).expect("memory");
    let ran = launch(
        &Launch {
            kernel: &program.kernels[0],
            grid: [cluster, 1, 1],
            block: [32 * warps, 1, 1],
            cluster: [cluster, 1, 1],
            cooperative: false,
            dynamic_shared: 4096,
            params: &x.to_le_bytes(),
        },
        &memory,
    );
    ran.err().map(|fault| fault.message)
}

#[track_caller]
fn clean(body: &str) {
    assert_eq!(run_on(1, 2, body), None);
}

/// It races, and the message says how.
#[track_caller]
fn races(body: &str, parts: &[&str]) {
    says(run_on(1, 2, body), parts);
}

#[track_caller]
fn says(fault: Option<String>, parts: &[&str]) {
    let message = fault.expect("a race");
    assert!(message.contains("a race on address"), "{message}");
    for part in parts {
        assert!(message.contains(part), "{part}: {message}");
    }
}

/// Each thread writes its word, and reads that of the other warp.
const WRITE: &str = "st.shared.b32 [%r3], %r1; xor.b32 %r5, %r3, 128;";
const READ: &str = "ld.shared.b32 %r6, [%r5];";

#[test]
fn a_read_comes_after_a_barrier() {
    clean(&format!("{WRITE} bar.sync 0; {READ}"));
    races(
        &format!("{WRITE} {READ}"),
        &["writes it at instruction", ": st.shared.b32 [%r3], %r1", ": ld.shared.b32 %r6, [%r5]"],
    );
    races(&format!("{WRITE} bar.warp.sync -1; {READ}"), &["thread 0 of block 0 reads"]);
}

#[test]
fn lanes_meet_before_they_read_of_others() {
    let (write, read) = ("@%p2 st.shared.b32 [0], 7;", "@%p1 ld.shared.b32 %r6, [0];");
    races(&format!("{write} {read}"), &["thread 0 of block 0 writes", "thread 1 of block 0 reads"]);
    clean(&format!("{write} bar.warp.sync -1; {read}"));
    clean(&format!("{write} shfl.sync.idx.b32 %r7, %r1, 0, 31, -1; {read}"));
    clean("st.shared.b32 [%r3], %r1; ld.shared.b32 %r6, [%r3];");
}

#[test]
fn a_write_comes_after_reads() {
    let again = "st.shared.b32 [%r3], %r3;";
    clean(&format!("{WRITE} bar.sync 0; {READ} bar.sync 0; {again}"));
    races(&format!("{WRITE} bar.sync 0; {READ} {again}"), &["reads it", "writes it"]);
    // Both warps have read it.
    let both = "ld.shared.b32 %r6, [0]; ";
    clean(&format!("{WRITE} bar.sync 0; {both} bar.sync 0; @%p2 {again}"));
    races(
        &format!("{WRITE} bar.sync 0; {both} @%p2 st.shared.b32 [0], 7;"),
        &["[0], 7", "thread "],
    );
}

#[test]
fn writes_are_ordered_or_the_same() {
    races("st.shared.b32 [0], %r2;", &["thread 31 of block 0 writes", "thread 32 of block 0"]);
    clean("st.shared.b32 [0], 5;");
    clean("@%p1 st.shared.b32 [0], %r2; bar.sync 0; @!%p1 st.shared.b32 [0], %r2;");
    // Neighbouring bytes are not the same.
    clean("st.shared.b8 [%r1], %r1;");
    races("st.shared.b8 [%r1], %r1; ld.shared.b32 %r5, [28]; st.shared.b32 [%r3], %r1;", &[]);
}

#[test]
fn barriers_have_numbers_and_threads() {
    clean(&format!("{WRITE} bar.sync 3, 64; {READ}"));
    races(&format!("{WRITE} add.u32 %r7, %r2, 1; bar.sync %r7, 32; {READ}"), &[]);
}

#[test]
fn atomics_do_not_race_but_with_others() {
    let set = "@%p2 st.shared.b32 [0], 0;";
    let add = "atom.shared.add.u32 %r6, [0], 1;";
    let read = "ld.shared.b32 %r7, [0];";
    clean(&format!("{set} bar.sync 0; {add} bar.sync 0; {read}"));
    races(&format!("{set} {add}"), &["changes it", "[0], 0"]);
    races(&format!("{set} bar.sync 0; {add} {read}"), &["changes it", "reads it"]);
    races(&format!("{set} bar.sync 0; @%p1 {read} @!%p1 {add}"), &["changes it", "reads it"]);
}

/// Lane 0 of a warp waits for a phase of the barrier at an address; all lanes of it go on.
fn wait(name: &str, bar: &str, parity: &str) -> String {
    format!("{name}: mbarrier.try_wait.parity.shared.b64 %p5, [{bar}], {parity}; @!%p5 bra {name};")
}

/// A ring of one place: warp 0 fills it four times for the others. `empty`: what they do when they have read.
fn ring(empty: &str) -> String {
    format!(
        "@%p2 mbarrier.init.shared.b64 [0], 32; @%p2 mbarrier.init.shared.b64 [8], 32; bar.sync 0;
        mov.u32 %r8, 0;
        and.b32 %r12, %r3, 127;
        @!%p1 bra READER;
        WRITER:
        and.b32 %r9, %r8, 1; xor.b32 %r10, %r9, 1;
        {}
        add.u32 %r11, %r3, %r8; st.shared.b32 [%r3+64], %r11;
        mbarrier.arrive.shared.b64 %rd4, [0];
        add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 4; @%p3 bra WRITER;
        bra END;
        READER:
        and.b32 %r9, %r8, 1;
        {}
        ld.shared.b32 %r6, [%r12+64];
        {empty}
        add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 4; @%p3 bra READER;
        END:",
        wait("FREE", "8", "%r10"),
        wait("FULL", "0", "%r9"),
    )
}

#[test]
fn who_waits_knows_what_those_knew_that_arrived() {
    let body = |before: &str, after: &str| {
        format!(
            "@%p1 bra FIRST; bar.sync 1, 64; xor.b32 %r5, %r3, 128; ld.shared.b32 %r6, [%r5]; ret;
            FIRST: {before} bar.arrive 1, 64; {after}"
        )
    };
    clean(&body(WRITE, ""));
    races(&body("", WRITE), &["reads it", "writes it"]);
    // Who arrives does not learn what the others did.
    let body = |first: &str| {
        format!(
            "xor.b32 %r5, %r3, 128; @%p1 bra FIRST; {WRITE} bar.sync 1, 64; ret;
            FIRST: {first} 1, 64; {READ}"
        )
    };
    clean(&body("bar.sync"));
    races(&body("bar.arrive"), &["reads it", "writes it"]);
    // In turns: one begins, and each lets the other go on.
    let turns = |second: &str| {
        format!(
            "mov.u32 %r8, 0; @%p1 bra FIRST;
            SECOND: bar.sync 2, 64; {second}
            add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 4; @%p3 bra SECOND; ret;
            FIRST: st.shared.b32 [0], %r1; bar.arrive 2, 64; bar.sync 1, 64;
            add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 4; @%p3 bra FIRST; ret;"
        )
    };
    clean(&turns("st.shared.b32 [0], %r1; bar.arrive 1, 64;"));
    races(&turns("bar.arrive 1, 64; st.shared.b32 [0], %r1;"), &["writes it"]);
}

#[test]
fn a_ring_is_ordered_by_its_barriers() {
    let arrive = "mbarrier.arrive.shared.b64 %rd4, [8];";
    clean(&ring(arrive));
    // The reader forgets to, or one of two does.
    assert!(run_on(1, 2, &ring("")).is_some_and(|fault| fault.contains("nothing can go on")));
    let one = format!("setp.eq.u32 %p6, %r2, 1; @%p6 {arrive}");
    says(run_on(1, 3, &ring(&one)), &["reads it", "writes it"]);
    // It arrives before it has read.
    races(&ring(&format!("{arrive} ld.shared.b32 %r6, [%r12+64];")), &["reads it", "writes it"]);
    let no_sync = ring(arrive).replace("bar.sync 0;", "");
    assert!(run_on(1, 2, &no_sync).is_some());
}

#[test]
fn copies_are_known_to_who_has_waited() {
    let copy = "cvt.u64.u32 %rd2, %r3; add.u64 %rd3, %rd1, %rd2; xor.b32 %r5, %r3, 128;
        cp.async.ca.shared.global [%r3], [%rd3], 4; cp.async.commit_group;";
    let wait = "cp.async.wait_group 0;";
    clean(&format!("{copy} {wait} bar.sync 0; {READ}"));
    clean(&format!("{copy} {wait} ld.shared.b32 %r6, [%r3];"));
    races(&format!("{copy} {wait} {READ}"), &["cp.async"]);
    // Not waited for: by another warp, by its own, never.
    races(&format!("{copy} bar.sync 0; {READ} {wait}"), &["cp.async", "reads it"]);
    races(&format!("{copy} ld.shared.b32 %r6, [%r3]; {wait}"), &["cp.async", "reads it"]);
    races(&format!("{copy} bar.sync 0; {READ}"), &["cp.async", "reads it"]);
    races(&format!("{copy} @%p1 ret; bar.sync 0; {READ}"), &["cp.async", "reads it"]);
    // The place is still being read.
    races(&format!("{WRITE} bar.sync 0; {READ} {copy} {wait}"), &["cp.async", "reads it"]);
    clean(&format!("{WRITE} bar.sync 0; {READ} bar.sync 0; {copy} {wait}"));
}

#[test]
fn a_barrier_tracks_copies() {
    let body = |wait: &str| {
        format!(
            "@%p2 mbarrier.init.shared.b64 [0], 64; bar.sync 0;
            cvt.u64.u32 %rd2, %r3; add.u64 %rd3, %rd1, %rd2; xor.b32 %r5, %r3, 128;
            cp.async.ca.shared.global [%r3+1024], [%rd3], 4;
            cp.async.mbarrier.arrive.noinc.shared.b64 [0];
            {wait}
            ld.shared.b32 %r6, [%r5+1024];"
        )
    };
    clean(&body(&wait("W", "0", "0")));
    races(&body("bar.sync 0;"), &["a late copy", "cp.async.ca"]);
}

/// Lane 0 brings 256 bytes to 1024.
const BULK: &str = "@%p2 mbarrier.arrive.expect_tx.shared.b64 %rd4, [0], 256;
    @%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [1024], [%rd1], 256, [0];";
const BULK_BAR: &str = "@%p2 mbarrier.init.shared.b64 [0], 1; bar.sync 0;";

#[test]
fn bulk_copies_are_counted() {
    let wait = wait("W", "0", "0");
    let read = "ld.shared.b32 %r6, [%r3+1024];";
    clean(&format!("{BULK_BAR} {BULK} {wait} {read}"));
    races(&format!("{BULK_BAR} {BULK} {read} {wait}"), &["cp.async.bulk", "reads it"]);
    // The copy is done when a warp reads that did not wait.
    races(
        &format!("{BULK_BAR} {BULK} @!%p1 bra LATER; {wait} LATER: bar.warp.sync -1; {read}"),
        &["cp.async.bulk"],
    );
    clean(&format!("{BULK_BAR} {BULK} @!%p1 bra LATER; {wait} LATER: bar.sync 0; {read}"));
    // It comes over what is being read.
    let first = format!(
        "st.shared.b32 [%r3+1024], %r1; {FENCE} bar.sync 0; xor.b32 %r5, %r3, 128; ld.shared.b32 %r6, [%r5+1024];"
    );
    races(&format!("{BULK_BAR} {first} {BULK} {wait}"), &["cp.async.bulk", "reads it"]);
    clean(&format!("{BULK_BAR} {first} {FENCE} bar.sync 0; {BULK} {wait}"));
}

const FENCE: &str = "fence.proxy.async.shared::cta;";

#[test]
fn a_fence_stands_between_threads_and_bulk_copies() {
    let wait = wait("W", "0", "0");
    let first = "st.shared.b32 [%r3+1024], %r1;";
    for (what, says) in [(first, "writes it"), ("ld.shared.b32 %r6, [%r3+1024];", "reads it")] {
        // Of who did it, or of who asks for the copy and knows of it.
        clean(&format!("{BULK_BAR} {what} {FENCE} bar.sync 0; {BULK} {wait}"));
        clean(&format!("{BULK_BAR} {what} bar.sync 0; @%p2 {FENCE} {BULK} {wait}"));
        races(&format!("{BULK_BAR} {what} bar.sync 0; {BULK} {wait}"), &["cp.async.bulk", says]);
        // Too soon; of somebody who knows nothing of it.
        races(&format!("{BULK_BAR} {FENCE} {what} bar.sync 0; {BULK} {wait}"), &[says]);
        races(&format!("{BULK_BAR} {what} @!%p1 {FENCE} bar.sync 0; {BULK} {wait}"), &[says]);
    }
    // What a copy wrote needs none before the next one, nor before it is read; what was read does.
    let (again, second) = (BULK.replace("%rd4", "%rd5"), self::wait("X", "0", "1"));
    clean(&format!("{BULK_BAR} {BULK} {wait} bar.sync 0; {again} {second}"));
    let read = "ld.shared.b32 %r6, [%r3+1024];";
    clean(&format!("{BULK_BAR} {BULK} {wait} {read} {FENCE} bar.sync 0; {again} {second} {read}"));
    races(&format!("{BULK_BAR} {BULK} {wait} {read} bar.sync 0; {again} {second}"), &["reads it"]);
}

/// Each thread writes its word in the other block of the cluster.
const REMOTE: &str = "xor.b32 %r7, %r4, 1; mapa.shared::cluster.u32 %r8, %r3, %r7;
    st.shared::cluster.b32 [%r8], %r1;";
const CLUSTER: &str = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";

#[test]
fn blocks_of_a_cluster_meet() {
    let read = "ld.shared.b32 %r6, [%r3];";
    assert_eq!(run_on(2, 2, &format!("{REMOTE} {CLUSTER} {read} {CLUSTER}")), None);
    says(
        run_on(2, 2, &format!("{REMOTE} bar.sync 0; {read} {CLUSTER}")),
        &["of block 0", "of block 1"],
    );
    let relaxed = CLUSTER.replace("arrive", "arrive.relaxed");
    says(
        run_on(2, 2, &format!("{REMOTE} {relaxed} {read} {CLUSTER}")),
        &["of block 0", "of block 1"],
    );
}

#[test]
fn remote_stores_are_counted() {
    let body = |wait: &str| {
        format!(
            "@%p2 mbarrier.init.shared.b64 [0], 1; {CLUSTER}
            @%p2 mbarrier.arrive.expect_tx.shared.b64 %rd4, [0], 256;
            xor.b32 %r7, %r4, 1; add.u32 %r9, %r3, 1024;
            mapa.shared::cluster.u32 %r8, %r9, %r7; mov.u32 %r11, 0;
            mapa.shared::cluster.u32 %r10, %r11, %r7;
            st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r8], %r1, [%r10];
            {wait} ld.shared.b32 %r6, [%r9]; {CLUSTER}"
        )
    };
    assert_eq!(run_on(2, 2, &body(&wait("W", "0", "0"))), None);
    let early = format!("ld.shared.b32 %r6, [%r9]; {}", wait("W", "0", "0"));
    says(run_on(2, 2, &body(&early)), &["st.async", "reads it"]);
}
