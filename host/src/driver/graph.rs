//! Work recorded once and replayed with one call.
//!
//! [`Stream::capture`] records what its closure enqueues. The graph keeps every buffer and module
//! whose address was handed out for the captured stream, so a replay never touches freed memory.
//! Dropping a graph waits for its last replay before it lets go of them.

use std::any::Any;
use std::sync::{Arc, Mutex};

use super::api::{Api, CAPTURE_RELAXED, Handle};
use super::device::Device;
use super::error::GraphError;
use super::stream::{Capture, Stream, lock};

/// A captured and instantiated graph.
pub struct Graph(Arc<GraphInner>);

struct GraphInner {
    exec: Handle,
    device: Device,
    nodes: usize,
    launched_on: Mutex<Vec<Stream>>,
    /// Dropped last, after the wait in `drop`.
    keep: Vec<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: the driver lets any thread launch an instantiated graph, and serialises launches of one.
unsafe impl Send for GraphInner {}
// SAFETY: as above.
unsafe impl Sync for GraphInner {}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({} nodes, keeps {} objects)", self.0.nodes, self.0.keep.len())
    }
}

impl Stream {
    /// Records what `body` enqueues on this stream (and on streams that join it by
    /// [`Stream::wait`]) instead of running it.
    ///
    /// The recorded work reads and writes the same addresses at every replay. Copies from and to
    /// host memory cannot be captured; copies on the device and fills can.
    ///
    /// # Errors
    /// Those of `body`, a stream that is captured already, a call that a graph cannot hold, or a
    /// driver failure. The capture is ended in every case, also when `body` panics, and the stream
    /// can be used again.
    pub fn capture<R, E: From<GraphError>>(
        &self,
        body: impl FnOnce(&Stream) -> Result<R, E>,
    ) -> Result<(Graph, R), E> {
        let running = Running::begin(self)?;
        let result = body(self)?;
        let (graph, keep) = running.end()?;
        Ok((instantiate(self.device(), graph, keep)?, result))
    }
}

/// Ends the capture when dropped.
struct Running<'s> {
    stream: &'s Stream,
    api: &'static Api,
    capture: Arc<Capture>,
    ended: bool,
}

/// A captured graph that is not instantiated; destroyed when dropped.
struct Template {
    raw: Handle,
    api: &'static Api,
}

impl Drop for Template {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the handle is alive and not used again.
            unsafe { (self.api.graph_destroy)(self.raw) };
        }
    }
}

impl<'s> Running<'s> {
    fn begin(stream: &'s Stream) -> Result<Self, GraphError> {
        let api = stream.device().bind()?;
        let mut slot = stream.capture_slot();
        if slot.is_some() {
            return Err(GraphError::AlreadyCapturing);
        }
        // Relaxed: the pool may still ask the driver for a page inside the body, and other threads
        // are not held up.
        // SAFETY: the handle is alive and no capture is running on it.
        let code = unsafe { (api.stream_begin_capture)(stream.raw(), CAPTURE_RELAXED) };
        api.check(code, "cuStreamBeginCapture")?;
        let capture = Arc::new(Capture::new());
        *slot = Some(capture.clone());
        stream.mark_capturing();
        Ok(Self { stream, api, capture, ended: false })
    }

    fn end(mut self) -> Result<(Template, Vec<Arc<dyn Any + Send + Sync>>), GraphError> {
        let (code, template, keep) = self.finish();
        if code != 0 {
            let source = self.api.error(code, "cuStreamEndCapture");
            return Err(match code {
                904 => GraphError::Unjoined { source },
                901 => GraphError::Invalidated { source },
                _ => GraphError::Driver(source),
            });
        }
        Ok((template, keep))
    }

    fn finish(&mut self) -> (i32, Template, Vec<Arc<dyn Any + Send + Sync>>) {
        self.ended = true;
        let mut raw = std::ptr::null_mut();
        let code = match self.stream.device().bind() {
            // SAFETY: the handle is alive and its capture was begun by `begin`.
            Ok(api) => unsafe { (api.stream_end_capture)(self.stream.raw(), &mut raw) },
            Err(error) => error.code,
        };
        self.stream.set_capture(None);
        (code, Template { raw, api: self.api }, self.capture.finish())
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // The body failed or panicked: what it recorded is thrown away.
            self.finish();
        }
    }
}

fn instantiate(
    device: &Device,
    template: Template,
    keep: Vec<Arc<dyn Any + Send + Sync>>,
) -> Result<Graph, GraphError> {
    let api = device.bind()?;
    let mut nodes = 0;
    // SAFETY: a null array asks only for the count.
    let code = unsafe { (api.graph_nodes)(template.raw, std::ptr::null_mut(), &mut nodes) };
    api.check(code, "cuGraphGetNodes")?;
    let instantiate = api
        .graph_instantiate
        .ok_or(GraphError::Unsupported { symbol: "cuGraphInstantiateWithFlags" })?;
    let mut exec = std::ptr::null_mut();
    // SAFETY: writes one handle; the template is alive.
    api.check(unsafe { instantiate(&mut exec, template.raw, 0) }, "cuGraphInstantiate")?;
    Ok(Graph(Arc::new(GraphInner {
        exec,
        device: device.clone(),
        nodes,
        launched_on: Mutex::default(),
        keep,
    })))
}

impl Graph {
    /// Nodes of the graph: kernels, copies, fills and what joins streams.
    pub fn node_count(&self) -> usize {
        self.0.nodes
    }

    /// Buffers and modules that the graph keeps alive.
    pub fn kept_count(&self) -> usize {
        self.0.keep.len()
    }

    /// Enqueues one replay on `stream`.
    ///
    /// # Errors
    /// A stream of another device or one that is being captured, or a driver failure.
    pub fn launch(&self, stream: &Stream) -> Result<(), GraphError> {
        if *stream.device() != self.0.device {
            return Err(GraphError::WrongDevice {
                graph_device: self.0.device.ordinal(),
                stream_device: stream.device().ordinal(),
            });
        }
        if stream.is_capturing() {
            return Err(GraphError::NotInCapture { what: "launching a graph" });
        }
        let api = self.0.device.bind()?;
        {
            let mut launched_on = lock(&self.0.launched_on);
            if !launched_on.contains(stream) {
                launched_on.push(stream.clone());
            }
        }
        let start = || {
            // SAFETY: both handles are alive, and so is all memory that the graph touches (`keep`).
            let code = unsafe { (api.graph_launch)(self.0.exec, stream.raw()) };
            api.check(code, "cuGraphLaunch").map_err(GraphError::from)
        };
        match self.0.device.profiler() {
            Some(profiler) => profiler.timed("graph", stream, start),
            None => start(),
        }
    }

    /// Moves the graph's work description to the device ahead of its first launch.
    ///
    /// # Errors
    /// A driver failure.
    pub fn upload(&self, stream: &Stream) -> Result<(), GraphError> {
        let api = self.0.device.bind()?;
        let Some(upload) = api.graph_upload else { return Ok(()) };
        // SAFETY: both handles are alive.
        let code = unsafe { upload(self.0.exec, stream.raw()) };
        Ok(api.check(code, "cuGraphUpload")?)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A stream that is being captured cannot be waited for: its new graph takes this one over.
        for stream in lock(&self.0.launched_on).iter() {
            stream.keep(|| self.0.clone());
        }
    }
}

impl Drop for GraphInner {
    fn drop(&mut self) {
        let launched_on = std::mem::take(&mut *lock(&self.launched_on));
        if launched_on.iter().any(Stream::is_capturing) {
            // Only when a graph that took this one over is dropped inside a third capture: to leak
            // is the one thing left that is sound.
            std::mem::forget(std::mem::take(&mut self.keep));
            return;
        }
        for stream in launched_on {
            // A failure is one of earlier work, which the stream's next user sees too.
            let _ = stream.synchronize();
        }
        if let Ok(api) = self.device.bind() {
            // SAFETY: no replay is pending and the handle is not used again.
            unsafe { (api.graph_exec_destroy)(self.exec) };
        }
    }
}
