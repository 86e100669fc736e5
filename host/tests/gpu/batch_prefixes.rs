//! Prompts that begin like a text that is or was there: a sequence copies its pages, and gives what it gives alone.

use bitnet_gpu::model::{Batch, BatchOptions, HeadKind, Model, PAGE_SIZE};
use bitnet_gpu::ops::{Backend, RowType};
use bitnet_gpu::reference::Inputs as Seeded;
use bitnet_gpu::reference::sample::GREEDY;
use contract::sample::SampleParams;

use crate::batch::{CAPACITY, Request, bits, truth};
use crate::lane;
use crate::model::files;

const OPTIONS: BatchOptions = BatchOptions {
    max_batch: 3,
    capacity: CAPACITY,
    pages: 9,
    kv: bitnet_gpu::ops::attention_paged::PageType::Float(RowType::Bf16),
    chunk: 64,
    prompt_share: 64,
    prefix_cache: true,
    one_kernel: true,
    draft_rows: 0,
};

fn request(prompt: Vec<u32>, steps: usize) -> Request {
    let params = SampleParams { max_steps: steps as u32, ..GREEDY };
    Request { prompt, params, removed_after: steps, tokens: Vec::new(), logits: Vec::new() }
}

/// Steps until the sequences in `slots` have given all that they are asked for, which has to be what they give alone.
fn run<B: Backend>(model: &Model<B>, batch: &mut Batch<B>, all: &[(usize, &Request)], what: &str) {
    let backend = model.backend();
    while all.iter().any(|&(slot, _)| batch.queued(slot) < batch.limit(slot)) {
        let before: Vec<_> = all.iter().map(|&(slot, _)| batch.queued(slot)).collect();
        model.decode_batch(batch, true).expect("a step");
        for (&(slot, request), before) in all.iter().zip(before) {
            let queued = batch.queued(slot);
            // The first token is not picked in a step.
            if model.head_kind() == HeadKind::Stored && queued > before.max(1) {
                let found = bits(&batch.read_logits(backend, slot).expect("logits"));
                assert!(found == request.logits[queued - 1], "{what}, slot {slot}, token {queued}");
            }
        }
    }
    backend.synchronize().expect("the steps end");
    for &(slot, request) in all {
        let tokens: Vec<_> = (0..request.tokens.len()).map(|i| batch.token(slot, i)).collect();
        assert_eq!(tokens, request.tokens, "{what}, slot {slot}");
    }
}

#[test]
fn beginnings_are_copied() {
    let _shared = lane::shared();
    let files = files("tiny");
    let checkpoint = files.open();
    let vocab = checkpoint.config().vocab_size;
    let mut seeded = Seeded::new(16);
    let mut ids = |len: usize| (0..len).map(|_| seeded.below(vocab) as u32).collect::<Vec<_>>();
    let (long, other, asked, more) = (ids(150), ids(150), ids(115), ids(7));
    let mut changed = long.clone();
    changed[0] = (changed[0] + 1) % vocab as u32;
    let requests =
        vec![request(long, 12), request(other, 4), request(asked, 20), request(changed, 3)];
    let first = truth(&checkpoint, RowType::Bf16, requests);
    let [long, other, asked, changed] = &first[..] else { panic!("four") };
    // What was asked, what was answered, and what is asked then.
    let turn = [&asked.prompt[..], &asked.tokens, &more].concat();
    let turn = &truth(&checkpoint, RowType::Bf16, vec![request(turn, 5)])[0];

    for (way, backend) in lane::ways() {
        let model = Model::load(backend, &checkpoint, &mut |_| {}).expect("the model loads");
        let backend = model.backend();
        let add = |batch: &mut Batch<_>, request: &Request| {
            model.admit(batch, &request.prompt, &request.params).expect("there is room")
        };
        let gone = |batch: &mut Batch<_>, slot| {
            assert!(batch.remove(backend, slot).expect("it goes"));
        };
        let mut batch = Batch::new(&model, OPTIONS).expect("a batch");
        // While the first one runs.
        let a = add(&mut batch, long);
        while batch.waits(a) {
            model.decode_batch(&mut batch, true).expect("a step");
        }
        let b = add(&mut batch, long);
        run(&model, &mut batch, &[(a, long), (b, long)], &way);
        // What differs in its first token is another text.
        let c = add(&mut batch, changed);
        run(&model, &mut batch, &[(c, changed)], &way);
        let cached = [a, b, c].map(|slot| batch.cached(slot));
        assert_eq!((cached, batch.pages().in_use), ([0, 2 * PAGE_SIZE, 0], 9), "{way}");
        [a, b, c].into_iter().for_each(|slot| gone(&mut batch, slot));
        assert_eq!(batch.pages().in_use, 0, "{way}");
        // Two that come at once: the second one finds what the first has run before it.
        let all = [other, other].map(|request| (add(&mut batch, request), request));
        run(&model, &mut batch, &all, &way);
        assert_eq!(all.map(|(slot, _)| batch.cached(slot)), [0, 2 * PAGE_SIZE], "{way}");
        all.into_iter().for_each(|(slot, _)| gone(&mut batch, slot));
        // The next turn of a conversation, behind the answer of the first; and once more.
        for (request, cached) in [(asked, 0), (turn, 2 * PAGE_SIZE), (turn, 2 * PAGE_SIZE)] {
            let slot = add(&mut batch, request);
            run(&model, &mut batch, &[(slot, request)], &way);
            assert_eq!(batch.cached(slot), cached, "{way}");
            gone(&mut batch, slot);
        }
        // With all pages in use nothing of it is known any more.
        let all = [long, changed, other].map(|request| (add(&mut batch, request), request));
        run(&model, &mut batch, &all, &way);
        all.into_iter().for_each(|(slot, _)| gone(&mut batch, slot));
        let slot = add(&mut batch, turn);
        run(&model, &mut batch, &[(slot, turn)], &way);
        assert_eq!(batch.cached(slot), 0, "{way}");

        let options = BatchOptions { prefix_cache: false, ..OPTIONS };
        let mut batch = Batch::new(&model, options).expect("a batch");
        let all = [long, long].map(|request| (add(&mut batch, request), request));
        run(&model, &mut batch, &all, &way);
        let cached = all.map(|(slot, _)| batch.cached(slot));
        assert_eq!(cached, [0, 0], "{way}, where it is not asked for");
    }
}
