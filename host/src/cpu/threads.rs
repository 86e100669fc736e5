//! Worker threads for operations of tens of microseconds.
//!
//! One job runs at a time: a function over task numbers `0..tasks`, claimed one by one from a
//! counter by the caller and by every worker that is awake. A worker joins a job by raising the
//! count in [`Shared::gate`] while the gate is open; the caller closes the gate when no task is left and waits for those that
//! joined. So a worker that the system wakes late is never waited for, and the job's borrows end
//! when [`Threads::run`] returns. Workers spin for a moment between jobs and then sleep.

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an idle worker looks for work before it sleeps.
const SPIN: Duration = Duration::from_micros(200);

/// The gate: bit 32 is "open", the bits above it the number of the job, the bits below it the
/// workers inside.
const OPEN: u64 = 1 << 32;
const NEXT_JOB: u64 = 1 << 33;
const INSIDE: u64 = OPEN - 1;

type Body = dyn Fn(usize) + Sync;

struct Job {
    body: *const Body,
    tasks: usize,
}

struct Shared {
    gate: AtomicU64,
    next: AtomicUsize,
    job: UnsafeCell<Job>,
    sleepers: AtomicUsize,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    lock: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `job` is the only field that is not already `Sync`. It is written by the caller that
// holds `Threads::busy` while the gate is closed and nobody is inside, and read only by workers
// that entered through the open gate; the gate's release and acquire order the two. The body it
// points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is never used outside of a job.
unsafe impl Send for Shared {}

/// A team of threads: the caller of [`Threads::run`] and its workers.
pub struct Threads {
    shared: Arc<Shared>,
    busy: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded values are valid at every point where a panic could have left them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Threads {
    /// A team of `count` threads, the caller's among them: starts `count - 1`.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn new(count: NonZeroUsize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(Job { body: &|_: usize| (), tasks: 0 }),
            sleepers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut team = Self { shared, busy: Mutex::new(()), workers: Vec::new() };
        for i in 1..count.get() {
            let shared = Arc::clone(&team.shared);
            let named = std::thread::Builder::new().name(format!("bitnet-cpu-{i}"));
            team.workers.push(named.spawn(move || shared.work())?);
        }
        Ok(team)
    }

    /// Threads of the team.
    pub fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `body(0)` to `body(tasks - 1)`, in any order, and returns when all have returned.
    ///
    /// While the team works on another job (a call from inside a task, or from another thread), the
    /// caller runs its tasks alone. A panic of a task is passed on.
    pub fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        let busy = match self.busy.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if tasks < 2 || self.workers.is_empty() || busy.is_none() {
            (0..tasks).for_each(body);
            return;
        }
        let shared = &*self.shared;
        // SAFETY: lengthens a borrow. The pointer is read only by workers inside the gate, and
        // `Close` waits for them before this function returns or unwinds.
        let body = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static Body>(body) };
        // SAFETY: `busy` is held, the gate is closed and nobody is inside (the last job's `Close`
        // saw to that), so no worker reads `job` now.
        unsafe { *shared.job.get() = Job { body, tasks } };
        shared.next.store(0, Ordering::Relaxed);
        // Opening must be ordered before reading `sleepers`: a worker counts itself there and then
        // looks at the gate, so one of the two sees the other.
        let before = shared.gate.fetch_add(NEXT_JOB + OPEN, Ordering::SeqCst);
        debug_assert_eq!(before & (INSIDE | OPEN), 0);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            drop(hold(&shared.lock));
            shared.wake.notify_all();
        }
        let close = Close(shared);
        shared.claim(body, tasks);
        drop(close);
        if let Some(panic) = hold(&shared.panic).take() {
            resume_unwind(panic);
        }
    }

    /// Cuts `out` into pieces of `piece` elements (the last may be shorter) and runs
    /// `body(i, piece i)` over them.
    pub fn run_pieces<T: Send>(
        &self,
        out: &mut [T],
        piece: usize,
        body: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let pieces = out.len().div_ceil(piece.max(1));
        self.run_rows(pieces, RowsMut::new(out, piece.max(1)), body);
    }

    /// Runs `body(i, row i)` for `rows` rows of one or more buffers.
    pub(crate) fn run_rows<R: Rows + Sync>(
        &self,
        rows: usize,
        out: R,
        body: impl Fn(usize, R::Row) + Sync,
    ) {
        self.run(rows, &|i| {
            // SAFETY: `out` is owned here and each task number runs once.
            body(i, unsafe { out.row(i) });
        });
    }

    /// Cuts the matrix `out` of `shape` (rows, columns) into tiles of at most `tile` and runs
    /// `body` over them, down the rows first.
    pub(crate) fn run_tiles<T: Send>(
        &self,
        out: &mut [T],
        shape: [usize; 2],
        tile: [usize; 2],
        body: impl Fn(Tile<'_, T>) + Sync,
    ) {
        let [rows, width] = shape;
        let out = &mut out[..rows * width];
        let base = Base(out.as_mut_ptr());
        let down = rows.div_ceil(tile[0]);
        self.run(down * width.div_ceil(tile[1]), &|task| {
            let (row, column) = (task % down * tile[0], task / down * tile[1]);
            body(Tile {
                base: &base,
                width,
                rows: row..rows.min(row + tile[0]),
                columns: column..width.min(column + tile[1]),
            });
        });
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(hold(&self.shared.lock));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker ends only by returning: its tasks' panics are caught.
            let _ = worker.join();
        }
    }
}

/// A pointer that tasks share; what they do with it is argued where they do it.
struct Base<T>(*mut T);

// SAFETY: the pointer alone gives no access; its users keep to disjoint elements of `T: Send`.
unsafe impl<T: Send> Sync for Base<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Base<T> {}

/// Buffers that can be handed out row by row.
pub(crate) trait Rows {
    /// A row of each of them.
    type Row;

    /// Row `i`.
    ///
    /// # Safety
    /// Called at most once for each number.
    unsafe fn row(&self, i: usize) -> Self::Row;
}

/// A buffer as rows of `stride` elements; the last may be shorter, and rows past it are empty.
pub(crate) struct RowsMut<'a, T> {
    base: Base<T>,
    len: usize,
    stride: usize,
    buffer: PhantomData<fn() -> &'a mut [T]>,
}

impl<'a, T> RowsMut<'a, T> {
    pub(crate) fn new(buffer: &'a mut [T], stride: usize) -> Self {
        let (base, len) = (Base(buffer.as_mut_ptr()), buffer.len());
        Self { base, len, stride, buffer: PhantomData }
    }

    /// Rows that are not empty.
    pub(crate) fn rows(&self) -> usize {
        self.len.div_ceil(self.stride)
    }
}

impl<'a, T: Send> Rows for RowsMut<'a, T> {
    type Row = &'a mut [T];

    unsafe fn row(&self, i: usize) -> &'a mut [T] {
        let at = i.saturating_mul(self.stride).min(self.len);
        let count = self.stride.min(self.len - at);
        // SAFETY: inside the buffer, which is borrowed exclusively for 'a and reached only through
        // `self`; rows of different numbers are disjoint, and each is handed out once (the caller).
        unsafe { std::slice::from_raw_parts_mut(self.base.0.add(at), count) }
    }
}

impl<A: Rows, B: Rows> Rows for (A, B) {
    type Row = (A::Row, B::Row);

    unsafe fn row(&self, i: usize) -> Self::Row {
        // SAFETY: the caller's promise, for each buffer.
        unsafe { (self.0.row(i), self.1.row(i)) }
    }
}

/// A rectangle of a matrix that one task writes.
pub(crate) struct Tile<'a, T> {
    base: &'a Base<T>,
    width: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl<T> Tile<'_, T> {
    pub(crate) fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    pub(crate) fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The tile's part of a row, by its number in the whole matrix.
    pub(crate) fn row(&mut self, row: usize) -> &mut [T] {
        assert!(self.rows.contains(&row), "outside of the tile");
        // SAFETY: the row is inside the matrix, and its columns of the tile are this task's alone,
        // which holds them through `self`.
        unsafe {
            let first = self.base.0.add(row * self.width + self.columns.start);
            std::slice::from_raw_parts_mut(first, self.columns.len())
        }
    }

    /// Writes one element, by its place in the whole matrix.
    pub(crate) fn set(&mut self, row: usize, column: usize, value: T) {
        assert!(self.rows.contains(&row) && self.columns.contains(&column), "outside of the tile");
        // SAFETY: inside the matrix, and of the tile, which is this task's alone.
        unsafe { *self.base.0.add(row * self.width + column) = value };
    }
}

/// Closes the gate and waits for everybody inside, also while unwinding.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.next.store(usize::MAX / 2, Ordering::Relaxed);
        self.0.gate.fetch_and(!OPEN, Ordering::SeqCst);
        let mut turns = 0u32;
        while self.0.gate.load(Ordering::Acquire) & INSIDE != 0 {
            pause(&mut turns);
        }
    }
}

fn pause(turns: &mut u32) {
    *turns = turns.wrapping_add(1);
    if turns.is_multiple_of(512) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

impl Shared {
    fn claim(&self, body: &Body, tasks: usize) {
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                return;
            }
            body(task);
        }
    }

    fn work(&self) {
        let mut last = 0;
        while let Some(gate) = self.wait(last) {
            let entered = self.gate.compare_exchange_weak(
                gate,
                gate + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if entered.is_err() {
                continue;
            }
            last = gate >> 33;
            // SAFETY: entered through the open gate: the caller wrote `job` before it opened it
            // and keeps it, and the body's borrows, until this worker has left.
            let (body, tasks) = unsafe {
                let job = &*self.job.get();
                (&*job.body, job.tasks)
            };
            let done = catch_unwind(AssertUnwindSafe(|| self.claim(body, tasks)));
            if let Err(panic) = done {
                hold(&self.panic).get_or_insert(panic);
            }
            self.gate.fetch_sub(1, Ordering::Release);
        }
    }

    /// The gate of an open job other than `last`; `None` when the team ends.
    fn wait(&self, last: u64) -> Option<u64> {
        let news = |gate: u64| gate & OPEN != 0 && gate >> 33 != last;
        let (start, mut turns) = (Instant::now(), 0);
        loop {
            let gate = self.gate.load(Ordering::SeqCst);
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            if news(gate) {
                return Some(gate);
            }
            pause(&mut turns);
            if turns.is_multiple_of(64) && start.elapsed() > SPIN {
                self.sleep(news);
            }
        }
    }

    fn sleep(&self, news: impl Fn(u64) -> bool) {
        let mut guard = hold(&self.lock);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !news(self.gate.load(Ordering::SeqCst)) && !self.stop.load(Ordering::SeqCst) {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team(count: usize) -> Threads {
        Threads::new(NonZeroUsize::new(count).expect("not zero")).expect("threads start")
    }

    #[test]
    fn every_task_runs_once() {
        for count in [1, 2, 3, 8] {
            let team = team(count);
            for tasks in [0, 1, 2, 7, 100, 1000] {
                let hits: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                team.run(tasks, &|i| {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1), "{count} {tasks}");
            }
        }
    }

    #[test]
    fn thousands_of_short_jobs_with_and_without_sleep() {
        let team = team(3);
        let mut out = vec![0usize; 37];
        for round in 0..5000 {
            team.run_pieces(&mut out, 5, |i, part| {
                for (j, v) in part.iter_mut().enumerate() {
                    *v = round + 5 * i + j;
                }
            });
            assert!(out.iter().enumerate().all(|(i, &v)| v == round + i));
            if round % 1000 == 0 {
                std::thread::sleep(2 * SPIN);
            }
        }
    }

    #[test]
    fn a_call_from_inside_a_task_runs_alone() {
        let team = team(2);
        let sum = AtomicUsize::new(0);
        team.run(4, &|i| {
            team.run(3, &|j| {
                sum.fetch_add(10 * i + j, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 3 * 60 + 4 * 3);
    }

    #[test]
    fn a_panic_is_passed_on_and_the_team_lives() {
        let team = team(2);
        for bad in [0, 63] {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                team.run(64, &|i| assert!(i != bad, "task {i}"));
            }));
            assert!(caught.is_err());
        }
        let ran = AtomicUsize::new(0);
        team.run(64, &|_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.into_inner(), 64);
    }
}
