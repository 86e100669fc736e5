//! [`contract::logprobs`]: log probabilities of tokens, and the most likely ones.

use bitnet_gpu::ops::logprobs::{LogprobScratch, Logprobs};
use bitnet_gpu::ops::{Backend, RowWords, TokenLog};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::logprobs::{TEST_SHAPES, tell};
use bitnet_gpu::reference::sample::logits;
use bitnet_gpu::selftest::Output;
use bitnet_gpu::selftest::logprobs::{Inputs, Row};
use contract::logprobs::{ENTRY_WORDS, LIST, LOGPROB, MAX_TOP, RANK};
use contract::w2a8::MAX_ROWS;

use crate::support::{check, dimension, generated, on_lane, refused, short, size, zeros};

on_lane! {
    listed_shapes
    logits_that_are_no_numbers
    ties_go_to_the_lower_index
    groups_of_several_tiles
    what_is_told_is_told_once
    probabilities_add_up_to_one
    generated_rows
    refusals
}

/// What an entry of a token log holds before it is written.
const EMPTY: u32 = u32::MAX;

fn expected(inputs: &Inputs) -> Vec<Output> {
    let Inputs { ref logits, vocab, ref rows, first, ring, .. } = *inputs;
    let mut last = vec![0x77; first];
    last.extend(rows.iter().map(|row| row.last));
    let entries = (first + rows.len()) * ring;
    let mut out = vec![EMPTY; (entries + 1) * ENTRY_WORDS];
    for (i, row) in rows.iter().enumerate() {
        let entries = &mut out[(first + i) * ring * ENTRY_WORDS..][..ring * ENTRY_WORDS];
        let asked = (row.id, row.step, row.wanted);
        tell(&logits[i * vocab..][..vocab], asked, &mut last[first + i], entries);
    }
    vec![
        Output::words("tickets", &[rows.len()], vec![0; rows.len()]),
        Output::words("last", &[last.len()], last),
        Output::words("out", &[entries + 1, ENTRY_WORDS], out),
    ]
}

fn check_case<B: Backend>(b: &B, inputs: &Inputs, what: &str) {
    let (vocab, rows) = (inputs.vocab, &inputs.rows);
    check(b, inputs, &expected(inputs), format!("{what}: vocab={vocab} {rows:?}"));
}

/// A row with all that can be listed.
fn one(logits: Vec<f32>, id: u32) -> Inputs {
    let row = Row { id, step: 1, wanted: 1 + MAX_TOP, last: 0 };
    Inputs { vocab: logits.len(), logits, rows: vec![row], first: 0, ring: 1, stride: 1 }
}

/// The words of the entry of `inputs`' only row.
fn entry<B: Backend>(b: &B, inputs: &Inputs) -> Vec<u32> {
    let outputs = bitnet_gpu::selftest::run(b, inputs).expect("it runs");
    outputs.iter().find(|o| o.tensor == "out").expect("entries").bits[..ENTRY_WORDS].to_vec()
}

fn listed_shapes<B: Backend>(b: &B) {
    let mut seeded = Seeded::new(1);
    for &vocab in TEST_SHAPES {
        for rows in [1, 3] {
            let of_rows = (0..rows).flat_map(|_| logits(vocab, seeded.bits()));
            let logits = of_rows.collect();
            let rows = (0..rows).map(|i| Row {
                id: seeded.below(vocab) as u32,
                step: 1 + i as u32,
                wanted: [1 + MAX_TOP, 2, u32::MAX][i],
                last: 0,
            });
            let rows = rows.collect();
            let inputs = Inputs { logits, vocab, rows, first: 2, ring: 3, stride: 2 };
            check_case(b, &inputs, "listed");
        }
    }
}

fn logits_that_are_no_numbers<B: Backend>(b: &B) {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for logits in [
        vec![nan, 1.0, nan, 2.0, nan],
        vec![-inf, -inf, -3.0, -inf],
        vec![nan; 1030],
        vec![-inf; 70],
        vec![-inf, nan, -inf],
        vec![inf, 1.0, inf, nan],
        vec![-nan, f32::MIN, 1e-42, -1e-42, f32::MAX],
    ] {
        for id in [0, 1, logits.len() as u32 - 1, logits.len() as u32, u32::MAX] {
            check_case(b, &one(logits.clone(), id), "no numbers");
        }
    }
    // Two infinities have half of the weight each.
    let of_infinity = entry(b, &one(vec![inf, 1.0, inf], 2));
    assert_eq!(f32::from_bits(of_infinity[LOGPROB]), 0.5f32.ln());
    assert_eq!((of_infinity[RANK], of_infinity[LIST]), (1, 0));
}

fn ties_go_to_the_lower_index<B: Backend>(b: &B) {
    for (vocab, ties) in [(33, vec![31, 32]), (5000, vec![255, 256, 999, 1023, 1024, 4999])] {
        let mut logits = vec![-1.0; vocab];
        ties.iter().for_each(|&i| logits[i as usize] = 2.5);
        let inputs = one(logits, ties[1]);
        check_case(b, &inputs, "ties");
        let entry = entry(b, &inputs);
        let found: Vec<_> = entry[LIST..].chunks(2).map(|pair| pair[0]).take(ties.len()).collect();
        // Equals have the same rank.
        assert_eq!((found, entry[RANK]), (ties, 1));
    }
    // +0 is above -0; of one group many are listed.
    check_case(b, &one(vec![-0.0, -0.0, 0.0, 0.0, -0.0], 4), "zeros");
    check_case(b, &one((0..3000).map(|i| -(i as f32)).collect(), 17), "in front");
    check_case(b, &one((0..3000).map(|i| i as f32).collect(), 17), "behind");
    check_case(b, &one(vec![1.0; 3000], 2999), "equal");
}

/// Vocabularies of more than 2^20 tokens.
fn groups_of_several_tiles<B: Backend>(b: &B) {
    if crate::support::emulated_sms().is_some() {
        return; // minutes
    }
    for vocab in [(1 << 20) + 1, (1 << 21) - 77] {
        let mut inputs = one(logits(vocab, 4), vocab as u32 / 2);
        // Several in one group.
        inputs.logits[vocab - 9..].fill(11.9);
        check_case(b, &inputs, "many");
    }
}

fn what_is_told_is_told_once<B: Backend>(b: &B) {
    let logits = logits(300, 3);
    for (step, wanted, last) in [(4, 0, 3), (0, 5, 0), (0, 5, 9), (4, 5, 4), (4, 5, 5), (9, 5, 0)] {
        let rows = vec![Row { id: 7, step, wanted, last }];
        let logits = logits.clone();
        let inputs = Inputs { logits, vocab: 300, rows, first: 1, ring: 4, stride: 5 };
        check_case(b, &inputs, "once");
    }
}

/// Against `f64`: a log probability is off by its own rounding, and by that of the two numbers of its difference.
fn probabilities_add_up_to_one<B: Backend>(b: &B) {
    let logits = Seeded::new(8).floats(20, 9.0);
    let entry = entry(b, &one(logits.clone(), 3));
    let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let mut whole = 0.0;
    for pair in entry[LIST..].chunks(2) {
        let (found, x) = (f64::from(f32::from_bits(pair[1])), f64::from(logits[pair[0] as usize]));
        assert!((found - (x - sum.ln())).abs() < 4e-6, "{found} {x}");
        whole += found.exp();
    }
    assert!((whole - 1.0).abs() < 1e-6, "{whole}");
}

fn generated_rows<B: Backend>(b: &B) {
    for i in 0..generated("logprobs") {
        let mut seeded = Seeded::new(9000 + i as u64);
        let (vocab, rows) = (size(&mut seeded, 3000), 1 + seeded.below(5));
        let logits = (0..rows).flat_map(|_| logits(vocab, seeded.bits())).collect();
        let rows = (0..rows).map(|_| Row {
            id: seeded.below(vocab + 1) as u32,
            step: seeded.below(9) as u32,
            wanted: seeded.below(24) as u32,
            last: seeded.below(3) as u32,
        });
        let rows = rows.collect();
        let (first, ring, stride) = (seeded.below(3), 1 + seeded.below(4), 1 + seeded.below(5));
        check_case(b, &Inputs { logits, vocab, rows, first, ring, stride }, "generated");
    }
}

fn refusals<B: Backend>(b: &B) {
    let (vocab, rows, ring) = (5, 3, 2);
    let (logits, few) = (&zeros::<B, f32>(b, 15), &zeros::<B, f32>(b, 14));
    let (words, two) = (&zeros::<B, u32>(b, 3), &zeros::<B, u32>(b, 2));
    let mut last = zeros::<B, u32>(b, 3);
    let mut out = b.alloc_tokens(rows * ring * ENTRY_WORDS).expect("entries");
    let mut small = b.alloc_tokens(rows * ring * ENTRY_WORDS - 1).expect("entries");
    let mut scratch = LogprobScratch::alloc(b, vocab, rows).expect("scratch");
    let mut less = LogprobScratch::alloc(b, vocab, rows - 1).expect("scratch");
    let of = |words| RowWords::<B> { words, at: 0, stride: 1 };
    let (ids, steps, wanted) = (of(words), of(words), of(words));
    macro_rules! op {
        ($($field:ident: $value:expr),*) => {{
            #[allow(unused_mut, reason = "one field is changed at a time")]
            let mut op = Logprobs { logits, vocab, ids, steps, wanted, last: &mut last, out: &mut out, scratch: &mut scratch, first: 0, rows, ring };
            $(op.$field = $value;)*
            b.logprobs(op)
        }};
    }
    op!().expect("it fits");
    for bad in [0, MAX_ROWS + 1] {
        refused!(dimension("vocab"), op!(vocab: bad));
        refused!(dimension("rows"), op!(rows: bad));
        refused!(dimension("ring"), op!(ring: bad));
    }
    refused!(dimension("first + rows"), op!(first: usize::MAX));
    refused!(short("logits"), op!(logits: few));
    refused!(short("ids"), op!(ids: of(two)));
    refused!(short("steps"), op!(steps: of(two)));
    refused!(short("wanted"), op!(wanted: of(two)));
    refused!(short("bests"), op!(scratch: &mut less));
    refused!(short("last"), op!(first: 1));
    refused!(short("out"), op!(out: &mut small));
    refused!(short("out"), op!(ring: 3));
    assert!((0..out.len()).all(|i| out.get(i) == 0 || out.get(i) == EMPTY));
}
