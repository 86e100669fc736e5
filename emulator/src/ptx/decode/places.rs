//! Where registers are kept. Compilers name each value of a kernel, thousands of them. One that is written first and read
//! last within a straight piece of code shares its place with others, so that the registers of a warp stay near the processor.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::super::text::{Item, Operand};

/// From the first instruction that names a register to the last one.
struct Life {
    file: usize,
    first: usize,
    last: usize,
    /// The straight piece of code that it is named in.
    piece: usize,
    /// Whether it is named in no other one, and written before it is read.
    within: bool,
}

/// Places by name, and how many there are in each file; `file` knows registers of the outermost scope.
pub(super) fn places(
    items: &[Item],
    file: impl Fn(&str) -> Option<usize>,
) -> (HashMap<&str, u32>, [u32; 3]) {
    let mut lives: HashMap<&str, Life> = HashMap::new();
    let mut piece = 0;
    for (at, item) in items.iter().enumerate() {
        let (guard, opcode, operands) = match item {
            Item::Label(_) => {
                piece += 1;
                continue;
            }
            Item::Instruction { guard, opcode, operands, .. } => (guard, opcode, operands),
            _ => continue,
        };
        // Their products read and write registers when they are waited for.
        let late = opcode.starts_with("wgmma.mma_async");
        let mut note = |name, written: bool| {
            let Some(file) = file(name) else { return };
            let within = written && guard.is_none() && !late;
            let life =
                lives.entry(name).or_insert(Life { file, first: at, last: at, piece, within });
            life.within &= life.piece == piece && !late;
            life.last = at;
        };
        let reads = ["bar", "brx", "nanosleep"].iter().any(|start| opcode.starts_with(start));
        let (to, from) = operands.split_at(usize::from(!reads).min(operands.len()));
        from.iter().for_each(|operand| names(operand, false, &mut note));
        to.iter().for_each(|operand| names(operand, true, &mut note));
        piece += usize::from(["bra", "brx", "ret", "exit"].iter().any(|o| opcode.starts_with(o)));
    }
    let mut by_first: Vec<(&str, Life)> = lives.into_iter().collect();
    by_first.sort_by_key(|(_, life)| life.first);
    let (mut places, mut used) = (HashMap::new(), [0; 3]);
    let mut busy = [(); 3].map(|()| BinaryHeap::new());
    for (name, life) in by_first {
        let busy: &mut BinaryHeap<Reverse<(usize, u32)>> = &mut busy[life.file];
        let free = busy.peek().filter(|place| place.0.0 < life.first && life.within);
        let place = match free.copied() {
            Some(Reverse((_, place))) => {
                busy.pop();
                place
            }
            None => {
                used[life.file] += 1;
                used[life.file] - 1
            }
        };
        if life.within {
            busy.push(Reverse((life.last, place)));
        }
        places.insert(name, place);
    }
    (places, used)
}

/// Calls with each name of an operand; `written`: those that do not stand in an address.
fn names<'a>(operand: &'a Operand, written: bool, note: &mut impl FnMut(&'a str, bool)) {
    match operand {
        Operand::Name(name) => name.split('|').for_each(|name| note(name, written)),
        Operand::Number(_) => {}
        Operand::List(list) => list.iter().for_each(|operand| names(operand, written, note)),
        Operand::Address(base, _, rest) => {
            names(base, false, note);
            rest.iter().for_each(|operand| names(operand, false, note));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::text::items;
    use super::*;

    fn found(body: &str) -> (Vec<u32>, u32) {
        let items = items(body).unwrap();
        let file = |name: &str| name.starts_with("%r").then_some(0);
        let (places, used) = places(&items, file);
        let of = |n: usize| places.get(format!("%r{n}").as_str()).copied();
        ((0..9).map_while(of).collect(), used[0])
    }

    #[test]
    fn a_place_is_free_behind_the_last_read() {
        let body = "mov.b32 %r0, 1; mov.b32 %r1, 2; add.s32 %r2, %r0, %r1; mov.b32 %r3, 3; \
                    add.s32 %r4, %r2, %r3; st.global.b32 [out], %r4;";
        let (places, used) = found(body);
        assert_eq!(used, 3);
        assert!(places[2] != places[0] && places[2] != places[1], "not in the same instruction");
        assert!(places[3] != places[2]);
    }

    #[test]
    fn what_others_may_read_keeps_its_place() {
        // Over a label, a branch or a guard, read before it is written, or late.
        for body in [
            "mov.b32 %r0, 1; $L: add.s32 %r1, %r0, %r0; mov.b32 %r2, 1;",
            "mov.b32 %r0, 1; @%p bra $L; add.s32 %r1, %r0, %r0; mov.b32 %r2, 1;",
            "@%p mov.b32 %r0, 1; add.s32 %r1, %r0, %r0; mov.b32 %r2, 1;",
            "add.s32 %r1, %r0, %r0; mov.b32 %r0, 1; mov.b32 %r2, 1;",
            "add.s32 %r0, %r0, 1; mov.b32 %r1, 1; mov.b32 %r2, 1;",
            "mov.b32 %r0, 1; wgmma.mma_async.sync %r0; mov.b32 %r1, 1; mov.b32 %r2, 1;",
            "bar.sync %r0; mov.b32 %r0, 1; mov.b32 %r1, 1; mov.b32 %r2, 1;",
        ] {
            let places = found(body).0;
            assert!(places[1..].iter().all(|place| *place != places[0]), "{body} {places:?}");
        }
    }
}
