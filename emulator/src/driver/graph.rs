//! Graphs: work that was captured, as one ordered list.
//!
//! The nodes of all streams of a capture stand in the order of the calls, which keeps every order that events ask for.
//! What each stream has seen of the others is counted only to tell whether all of them were joined back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use super::code::Code;
use super::device::{current, working};
use super::handles::{Handle, Table};
use super::stream::{Stream, stream};
use super::work::Work;
use super::{Out, entries, lock};

/// Captured graphs.
static GRAPHS: Table<Nodes> = Table::new();
/// Instantiated graphs.
static INSTANCES: Table<Nodes> = Table::new();

type Nodes = Arc<Vec<Work>>;

/// How many nodes of each stream, by its number, come before.
pub(super) type Seen = BTreeMap<u64, u64>;

/// A running capture.
pub(super) struct Capture {
    /// The stream that it was begun on.
    origin: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    nodes: Vec<Work>,
    members: BTreeMap<u64, Member>,
    spoilt: bool,
    ended: bool,
}

/// A stream that takes part.
struct Member {
    stream: Weak<Stream>,
    seen: Seen,
}

impl State {
    /// The member of a running capture.
    fn member(&mut self, stream: &Arc<Stream>) -> Result<&mut Member, Code> {
        if self.spoilt || self.ended {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let new = || Member { stream: Arc::downgrade(stream), seen: Seen::new() };
        Ok(self.members.entry(stream.number).or_insert_with(new))
    }
}

impl Capture {
    /// Appends a node.
    pub(super) fn add(&self, stream: &Arc<Stream>, work: Work) -> Result<(), Code> {
        let mut state = lock(&self.state);
        *state.member(stream)?.seen.entry(stream.number).or_default() += 1;
        state.nodes.push(work);
        Ok(())
    }

    /// What comes before the next node of a stream.
    pub(super) fn seen_by(&self, stream: &Arc<Stream>) -> Result<Seen, Code> {
        lock(&self.state).member(stream).map(|member| member.seen.clone())
    }

    /// The next node of `stream`, which joins if it does not take part yet, comes behind what was seen.
    pub(super) fn wait(self: &Arc<Self>, stream: &Arc<Stream>, seen: &Seen) -> Result<(), Code> {
        if lock(&self.state).ended {
            return Err(Code::CAPTURED_EVENT);
        }
        stream.join(self);
        let mut state = lock(&self.state);
        let member = state.member(stream)?;
        for (&of, &count) in seen {
            let known = member.seen.entry(of).or_default();
            *known = count.max(*known);
        }
        Ok(())
    }

    /// Something was called that no graph can hold.
    pub(super) fn spoil(&self) {
        lock(&self.state).spoilt = true;
    }

    /// Lets all streams go; gives the nodes.
    fn end(self: &Arc<Self>) -> Result<Vec<Work>, Code> {
        let state = {
            let mut state = lock(&self.state);
            let spoilt = state.spoilt;
            std::mem::replace(&mut *state, State { ended: true, spoilt, ..State::default() })
        };
        let members = state.members.values().filter_map(|member| member.stream.upgrade());
        members.for_each(|stream| stream.leave(self));
        if state.spoilt {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let joined = state.members.get(&self.origin).map(|origin| &origin.seen);
        let count = |seen: &Seen, of: &u64| seen.get(of).copied().unwrap_or(0);
        let all = state.members.iter().all(|(number, member)| {
            count(&member.seen, number) <= joined.map_or(0, |seen| count(seen, number))
        });
        if all { Ok(state.nodes) } else { Err(Code::STREAM_CAPTURE_UNJOINED) }
    }
}

entries! {
    /// Records the work of a stream from now on. All modes are as the relaxed one.
    fn cuStreamBeginCapture_v2(of: Handle, mode: u32) {
        let stream = stream(of)?;
        if mode > 2 {
            return Err(Code::INVALID_VALUE);
        }
        let capture = Arc::new(Capture { origin: stream.number, state: Mutex::default() });
        lock(&capture.state).member(&stream)?;
        if stream.join(&capture) { Ok(()) } else { Err(Code::ILLEGAL_STATE) }
    }

    /// Ends a capture; gives the graph.
    fn cuStreamEndCapture(of: Handle, to: Out<Handle>) {
        let stream = stream(of)?;
        let capture = stream.capture().ok_or(Code::ILLEGAL_STATE)?;
        if capture.origin != stream.number {
            capture.spoil();
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        match capture.end() {
            Ok(nodes) => to.put(GRAPHS.insert(Arc::new(Arc::new(nodes)))),
            Err(code) => to.put(Handle::NULL).and(Err(code)),
        }
    }

    /// The nodes of a graph: as many as there is room for, or how many there are.
    fn cuGraphGetNodes(of: Handle, to: *mut Handle, count: Out<usize>) {
        let nodes = GRAPHS.get(of)?.len();
        if to.is_null() {
            return count.put(nodes);
        }
        let room = count.get()?;
        for at in 0..room {
            let node = if at < nodes { Handle(of.0 << 20 | at) } else { Handle::NULL };
            // SAFETY: the caller has room for as many handles as it says.
            unsafe { to.add(at).write(node) };
        }
        count.put(nodes.min(room))
    }

    /// Forgets a graph.
    fn cuGraphDestroy(of: Handle) {
        GRAPHS.remove(of)?;
        current()?.state()
    }

    /// Makes a graph ready to run.
    fn cuGraphInstantiateWithFlags(to: Out<Handle>, of: Handle, _flags: u64) {
        working()?;
        let nodes = GRAPHS.get(of)?;
        to.put(INSTANCES.insert(nodes))
    }

    /// Forgets what was made ready. Queued runs are done nevertheless.
    fn cuGraphExecDestroy(of: Handle) {
        INSTANCES.remove(of)?;
        current()?.state()
    }

    /// Queues one run.
    fn cuGraphLaunch(of: Handle, on: Handle) {
        let nodes = INSTANCES.get(of)?;
        stream(on)?.submit(Work::Graph(Arc::clone(&nodes)))
    }

    /// Readies the first run: nothing to do.
    fn cuGraphUpload(of: Handle, on: Handle) {
        INSTANCES.get(of)?;
        stream(on).map(drop)
    }
}
