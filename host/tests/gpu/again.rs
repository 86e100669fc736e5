//! An operation again and again: into poisoned memory, with another one's launches between its own, many of them queued before
//! any result is read.
//!
//! What this is for is rare: a copy that overtakes a read, a flag that is seen before what it stands for. It may show in one launch of
//! a thousand and in a few elements, so all of every launch is held against the first one, bit for bit: each operation sums in one
//! order, on tensor cores too. That a launch is right is what the tests of the families say, against the oracles.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::thread;

use bitnet_gpu::memory::{Element, PinnedBuffer};
use bitnet_gpu::ops::{Backend, OpError};
use bitnet_gpu::selftest::POISONS;

use crate::lane::Lane;
use crate::support::{emulated_sms, repeats};

pub(crate) type Buf<T> = <Lane as Backend>::Buf<T>;

/// Launches of an operation that are queued before any of them is looked at.
pub(crate) fn queued() -> usize {
    if emulated_sms().is_some() { 2 } else { repeats(4) }
}

/// Something that can be launched into one of several outputs.
pub(crate) trait Again {
    /// What it is, for people.
    fn what(&self) -> &str;
    /// Puts everything that launches change as it was, and poison, another one in each round, in what they only write.
    fn reset(&mut self, b: &Lane, round: usize) -> Result<(), OpError>;
    /// Launches it into output `slot`.
    fn launch(&mut self, b: &Lane, slot: usize) -> Result<(), OpError>;
    /// Queues what brings the outputs to the host.
    fn fetch(&mut self, b: &Lane, spare: &mut Spare) -> Result<(), OpError>;
    /// In words, each of the outputs that is not that of the first launch.
    fn differences(&mut self, spare: &mut Spare) -> Vec<String>;
}

/// Memory of the host for outputs of one type and length, which takes long to reserve.
#[derive(Default)]
pub(crate) struct Spare(HashMap<(TypeId, usize), Vec<Box<dyn Any>>>);

impl Spare {
    fn take<T: Element>(&mut self, b: &Lane, len: usize) -> Vec<PinnedBuffer<T>> {
        let there = self.0.entry((TypeId::of::<T>(), len)).or_default().pop();
        let fresh = || (0..queued()).map(|_| PinnedBuffer::new(b.cuda().device(), len));
        match there.and_then(|there| there.downcast().ok()) {
            Some(there) => *there,
            None => fresh().collect::<Result<_, _>>().expect("memory of the host"),
        }
    }

    fn give<T: Element>(&mut self, len: usize, buffers: Vec<PinnedBuffer<T>>) {
        self.0.entry((TypeId::of::<T>(), len)).or_default().push(Box::new(buffers));
    }
}

/// A launch that writes all of one tensor.
struct Op<T: Element, F> {
    what: String,
    outs: Vec<Buf<T>>,
    host: Vec<PinnedBuffer<T>>,
    first: Option<Vec<T>>,
    launch: F,
}

/// Where two outputs of the same length differ.
fn difference<T: Element>(found: &[T], first: &[T]) -> Option<String> {
    let bytes = [found, first].map(bytemuck::cast_slice::<T, u8>);
    if bytes[0] == bytes[1] {
        return None;
    }
    let unequal = |i: &usize| bytemuck::bytes_of(&found[*i]) != bytemuck::bytes_of(&first[*i]);
    let at: Vec<usize> = (0..found.len()).filter(unequal).collect();
    let hex = |v: &T| bytemuck::bytes_of(v).iter().rev().map(|b| format!("{b:02x}")).collect();
    let (a, b): (String, String) = (hex(&found[at[0]]), hex(&first[at[0]]));
    let (len, last) = (found.len(), at[at.len() - 1]);
    Some(format!("{} of {len} elements, {} to {last}: {a} for {b}", at.len(), at[0]))
}

impl<T: Element, F: FnMut(&Lane, &mut Buf<T>) -> Result<(), OpError>> Again for Op<T, F> {
    fn what(&self) -> &str {
        &self.what
    }

    fn reset(&mut self, b: &Lane, round: usize) -> Result<(), OpError> {
        let mut outs = self.outs.iter_mut().enumerate();
        outs.try_for_each(|(slot, out)| b.fill(out, POISONS[(round + slot) % POISONS.len()]))
    }

    fn launch(&mut self, b: &Lane, slot: usize) -> Result<(), OpError> {
        (self.launch)(b, &mut self.outs[slot])
    }

    fn fetch(&mut self, b: &Lane, spare: &mut Spare) -> Result<(), OpError> {
        self.host = spare.take(b, self.outs[0].len());
        let stream = b.cuda().stream();
        for (out, host) in self.outs.iter().zip(&mut self.host) {
            out.as_slice().copy_to_pinned(stream, host).expect("a copy to the host");
        }
        Ok(())
    }

    fn differences(&mut self, spare: &mut Spare) -> Vec<String> {
        let found = self.host.iter().map(|host| host.as_slice().expect("a copy"));
        let found: Vec<&[T]> = found.collect();
        let first = &*self.first.get_or_insert_with(|| found[0].to_vec());
        let equal = |pair: &[T]| difference(&pair[..1], &pair[1..]).is_none();
        assert!(!first.windows(2).all(equal), "{} gives nothing that tells much", self.what);
        // Memory of the host is read faster by several threads.
        let differ = thread::scope(|scope| {
            let each = |out| scope.spawn(move || difference(out, first));
            let each: Vec<_> = found.into_iter().map(each).collect();
            each.into_iter().filter_map(|one| one.join().expect("a comparison")).collect()
        });
        spare.give(self.outs[0].len(), std::mem::take(&mut self.host));
        differ
    }
}

/// `launch`, which writes outputs of `len` elements; `None` where it is refused.
pub(crate) fn asked<T: Element>(
    b: &Lane,
    what: String,
    len: usize,
    launch: impl FnMut(&Lane, &mut Buf<T>) -> Result<(), OpError> + 'static,
) -> Option<Box<dyn Again>> {
    let out = || b.alloc("again", len).expect("memory for outputs");
    let mut op = Op { what, outs: vec![out()], host: Vec::new(), first: None, launch };
    op.launch(b, 0).ok()?;
    op.outs.resize_with(queued(), out);
    Some(Box::new(op))
}

/// The same of what no device refuses.
pub(crate) fn chosen<T: Element>(
    b: &Lane,
    what: String,
    len: usize,
    launch: impl FnMut(&Lane, &mut Buf<T>) -> Result<(), OpError> + 'static,
) -> Box<dyn Again> {
    let name = what.clone();
    asked(b, what, len, launch).unwrap_or_else(|| panic!("{name} is refused"))
}

/// A tensor of `values`.
pub(crate) fn on<T: Element>(b: &Lane, values: &[T]) -> Buf<T> {
    let mut buf = b.alloc("again", values.len()).expect("memory for inputs");
    b.write(&mut buf, 0, values).expect("a copy");
    buf
}

/// Launches each of `jobs`, alternating with the next one, `times` times, and so often again beside the one in front of it: all results
/// are those of its first launch.
pub(crate) fn hold(b: &Lane, jobs: &mut [Box<dyn Again>], times: usize, spare: &mut Spare) {
    let (slots, count) = (queued(), jobs.len());
    assert!(count > 1, "two at least, to alternate");
    let (mut wrong, mut launches) = (Vec::new(), 0);
    for at in 0..count {
        let mut pair = jobs.get_disjoint_mut([at, (at + 1) % count]).expect("two jobs");
        for round in 0..repeats(times).div_ceil(4) {
            let run = |pair: &mut [&mut Box<dyn Again>; 2], spare: &mut Spare| {
                pair.iter_mut().try_for_each(|job| job.reset(b, round))?;
                for slot in 0..slots {
                    pair.iter_mut().try_for_each(|job| job.launch(b, slot))?;
                }
                pair.iter_mut().try_for_each(|job| job.fetch(b, spare))
            };
            let ran: Result<(), OpError> = run(&mut pair, spare);
            ran.unwrap_or_else(|error| panic!("{}: {error}", pair[0].what()));
            launches += 2 * slots;
            for i in 0..2 {
                let beside = pair[1 - i].what().to_owned();
                for found in pair[i].differences(spare) {
                    let what = pair[i].what();
                    wrong.push(format!("{what} beside {beside}, round {round}: {found}"));
                }
            }
        }
    }
    println!("{count} operations, {launches} launches, {} of them wrong", wrong.len());
    let shown = &wrong[..wrong.len().min(40)];
    assert!(wrong.is_empty(), "{} of {launches} differ\n{}", wrong.len(), shown.join("\n"));
}

/// Two operations that write numbers, of which the second also does what `wrong` says at its third launch.
fn hold_two(wrong: impl Fn(&Lane, &mut Buf<f32>) -> Result<(), OpError> + 'static) {
    let shared = crate::lane::shared();
    let b = &*shared;
    let right = |b: &Lane, y: &mut Buf<f32>| b.write(y, 0, &[1.0, 2.0, 3.0]);
    let mut launches = 0;
    let other = move |b: &Lane, y: &mut Buf<f32>| {
        launches += 1;
        if launches == 3 { wrong(b, y) } else { right(b, y) }
    };
    let mut jobs = [chosen(b, "one".into(), 3, right), chosen(b, "two".into(), 3, other)];
    hold(b, &mut jobs, 8, &mut Spare::default());
}

#[test]
fn what_is_the_same_passes() {
    hold_two(|b, y| b.write(y, 0, &[1.0, 2.0, 3.0]));
}

#[test]
#[should_panic(
    expected = "two beside one, round 0: 1 of 3 elements, 1 to 1: 3f800000 for 40000000"
)]
fn what_differs_once_is_found() {
    hold_two(|b, y| b.write(y, 0, &[1.0, 1.0, 3.0]));
}

#[test]
#[should_panic(expected = "two beside one, round 0: 1 of 3 elements, 2 to 2")]
fn what_is_not_written_is_found() {
    hold_two(|b, y| b.write(y, 0, &[1.0, 2.0]));
}
