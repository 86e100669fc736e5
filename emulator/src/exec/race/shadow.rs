//! Who touched each piece of shared memory last.

use super::{How, Proxy};

/// An access of a warp, or of a copy that a barrier counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Access {
    /// The time of `who` when it happened; 0: never.
    pub(super) clock: u32,
    /// A warp of the cluster, or a barrier (its number after the warps').
    pub(super) who: u16,
    /// And [`ASYNC`].
    lane: u8,
    pub(super) how: How,
    /// The instruction.
    pub(super) pc: u32,
}

/// Beside the lane: by the asynchronous proxy.
const ASYNC: u8 = 1 << 7;

impl Access {
    pub(super) fn new(
        (clock, who): (u32, u16),
        lane: usize,
        (how, proxy): (How, Proxy),
        pc: u32,
    ) -> Self {
        let lane = lane as u8 | if proxy == Proxy::Async { ASYNC } else { 0 };
        Self { clock, who, lane, how, pc }
    }

    pub(super) fn lane(self) -> usize {
        (self.lane & !ASYNC).into()
    }

    pub(super) fn set_lane(&mut self, lane: usize) {
        self.lane = self.lane & ASYNC | lane as u8;
    }
}

/// In the place of a reader: the piece has several, in row `clock`.
const SEVERAL: u16 = u16::MAX;

/// A piece: the last write, and what has read it since (or changed it atomically).
#[derive(Clone, Copy, Default)]
struct Cell {
    write: Access,
    read: Access,
}

/// The shared memory of a cluster's blocks.
pub(super) struct Shadow {
    /// Bytes of a piece are `1 << shift`.
    shift: u32,
    /// By block.
    cells: Vec<Vec<Cell>>,
    rows: Rows,
}

/// What an access knows of the others' times.
#[derive(Clone, Copy)]
pub(super) struct Knows<'a> {
    /// Of what threads did, by warp and barrier; 0 where there is no entry.
    pub(super) generic: &'a [u32],
    /// The same of what went by the asynchronous proxy.
    pub(super) asynchronous: &'a [u32],
    /// All times up to this one, whosever: those of blocks that were in the place of these.
    pub(super) base: u32,
}

/// Readers of pieces that have several.
struct Rows {
    /// An access for each warp of the cluster.
    rows: Vec<Access>,
    free: Vec<u32>,
    warps: usize,
}

impl Knows<'_> {
    /// Whether who knows this much comes after `access`.
    #[inline(always)]
    fn after(self, access: Access) -> bool {
        let times = if access.lane & ASYNC != 0 { self.asynchronous } else { self.generic };
        access.clock <= self.base
            || access.clock <= times.get(usize::from(access.who)).copied().unwrap_or(0)
    }
}

impl Shadow {
    pub(super) fn new(shift: u32, blocks: usize, bytes: usize, warps: usize) -> Self {
        let cells = vec![Cell::default(); bytes.div_ceil(1 << shift)];
        let rows = Rows { rows: Vec::new(), free: Vec::new(), warps };
        Self { shift, cells: vec![cells; blocks], rows }
    }

    /// As if nothing had happened.
    pub(super) fn clear(&mut self) {
        self.cells.iter_mut().for_each(|cells| cells.fill(Cell::default()));
        self.rows.rows.clear();
        self.rows.free.clear();
    }

    /// `access` to bytes of a block by who knows this much of the others' times.
    ///
    /// # Errors
    /// An earlier access that it is not ordered with.
    #[inline(always)]
    pub(super) fn touch(
        &mut self,
        access: Access,
        known: Knows,
        block: usize,
        (at, bytes): (usize, usize),
    ) -> Result<(), Access> {
        if bytes == 0 {
            return Ok(());
        }
        let (first, last) = (at >> self.shift, (at + bytes - 1) >> self.shift);
        for cell in &mut self.cells[block][first..=last] {
            let (write, read) = (cell.write, cell.read);
            let again = |old: Access| (old.who, old.clock) == (access.who, access.clock);
            if access.how == How::Read {
                if again(write) && write.lane != access.lane {
                    // Lanes of a warp that have not met since.
                    return Err(write);
                }
                if read.how == How::Read && again(read) {
                    // Nobody has written it since.
                    continue;
                }
            }
            if !known.after(write) && access.how != How::Same {
                return Err(write);
            }
            if read.who == SEVERAL && (read.how, access.how) == (How::Read, How::Read) {
                self.rows.set(read.clock, access);
                continue;
            }
            let one = read.who != SEVERAL && known.after(read);
            match access.how {
                How::Write | How::Same if one => *cell = Cell { write: access, ..Cell::default() },
                How::Write | How::Same => self.rows.write(access, known, cell)?,
                _ if one && (read.how == access.how || read.clock <= known.base) => {
                    cell.read = access;
                }
                _ => self.rows.read(access, known, cell)?,
            }
        }
        Ok(())
    }
}

impl Rows {
    #[inline(always)]
    fn set(&mut self, row: u32, access: Access) {
        self.rows[row as usize * self.warps + usize::from(access.who)] = access;
    }

    #[inline(never)]
    fn write(&mut self, access: Access, known: Knows, cell: &mut Cell) -> Result<(), Access> {
        let read = std::mem::take(&mut cell.read);
        cell.write = access;
        if read.who == SEVERAL {
            self.free.push(read.clock);
            let row = read.clock as usize * self.warps;
            let of_all = self.rows[row..row + self.warps].iter();
            of_all.copied().find(|read| !known.after(*read)).map_or(Ok(()), Err)
        } else if known.after(read) {
            Ok(())
        } else {
            Err(read)
        }
    }

    #[inline(never)]
    fn read(&mut self, access: Access, known: Knows, cell: &mut Cell) -> Result<(), Access> {
        let old = cell.read;
        if old.how != access.how {
            // Plain reads after atomics, or atomics after plain reads: these are ordered, or they race.
            let write = cell.write;
            self.write(access, known, cell)?;
            *cell = Cell { write, read: access };
            return Ok(());
        }
        let row = if old.who == SEVERAL {
            old.clock
        } else {
            let row = self.free.pop().unwrap_or((self.rows.len() / self.warps) as u32);
            let start = row as usize * self.warps;
            self.rows.resize(self.rows.len().max(start + self.warps), Access::default());
            self.rows[start..start + self.warps].fill(Access::default());
            self.set(row, old);
            cell.read = Access { clock: row, who: SEVERAL, ..old };
            row
        };
        self.set(row, access);
        Ok(())
    }
}
