//! Kernels: what they are, how many fit, and their launch.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::exec::{self, Launch};

use super::code::Code;
use super::device::{BLOCK_THREADS, working};
use super::handles::Handle;
use super::module::{FUNCTIONS, Function};
use super::stream::stream;
use super::work::Work;
use super::{In, MEMORY, Out, complain, entries};

/// Registers of a thread that are reported: how many a compiler would need is not known.
const REGISTERS: i32 = 32;
/// Blocks of a cluster on every device that has clusters, and where more is asked for.
const CLUSTER_BLOCKS: u32 = 8;
const WIDE_CLUSTER_BLOCKS: u32 = 16;

/// `CUlaunchAttribute`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct LaunchAttribute {
    pub(super) id: u32,
    pub(super) pad: u32,
    pub(super) value: [u32; 16],
}

/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared: u32,
    pub(super) stream: Handle,
    pub(super) attributes: In<LaunchAttribute>,
    pub(super) count: u32,
}

const _: () = assert!(size_of::<LaunchAttribute>() == 72 && size_of::<LaunchConfig>() == 56);

/// A launch that was found good.
pub(super) struct Call {
    function: Arc<Function>,
    shape: Shape,
    params: Vec<u8>,
}

/// What a launch asks for beside its arguments.
#[derive(Clone, Copy)]
struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    cluster: [u32; 3],
    cooperative: bool,
    shared: u32,
}

impl Call {
    /// The kernel's name.
    pub(super) fn name(&self) -> &str {
        &self.function.kernel.name
    }

    /// Runs it; an error is the code and text of a fault.
    pub(super) fn run(&self) -> Result<(), (i32, String)> {
        let Shape { grid, block, cluster, cooperative, shared } = self.shape;
        let kernel = &*self.function.kernel;
        let (dynamic_shared, params) = (shared, &*self.params);
        let launch = Launch { kernel, grid, block, cluster, cooperative, dynamic_shared, params };
        exec::launch(&launch, &MEMORY).map_err(|fault| (fault.code, fault.message))
    }
}

fn product([x, y, z]: [u32; 3]) -> u64 {
    u64::from(x).saturating_mul(y.into()).saturating_mul(z.into())
}

impl Function {
    /// Most threads of a block.
    fn threads(&self) -> u32 {
        self.kernel.reqntid.map_or(BLOCK_THREADS, |block| product(block) as u32)
    }

    /// Blocks that a multiprocessor has room for at once, as if registers were plenty.
    fn blocks_per_multiprocessor(&self, threads: u32, dynamic_shared: u64) -> u32 {
        let sizes = self.device.sizes;
        if threads == 0 || threads > self.threads() || dynamic_shared > sizes.block_shared.into() {
            return 0;
        }
        let shared = (dynamic_shared + u64::from(sizes.reserved)).next_multiple_of(128).max(128);
        let by_shared = (u64::from(sizes.shared) / shared) as u32;
        (sizes.threads / threads.next_multiple_of(32)).min(sizes.blocks).min(by_shared)
    }

    /// The cluster of a launch that asks for `asked`, or refuses the launch.
    fn cluster(&self, asked: Option<[u32; 3]>) -> Result<[u32; 3], Code> {
        let declared = self.kernel.cluster;
        let cluster = declared.or(asked).unwrap_or([1; 3]);
        if declared.is_some() && asked.is_some_and(|asked| asked != cluster) {
            return Err(Code::INVALID_CLUSTER_SIZE);
        }
        let wide = self.wide_clusters.load(Ordering::Relaxed);
        let most = if wide { WIDE_CLUSTER_BLOCKS } else { CLUSTER_BLOCKS };
        match product(cluster) {
            1 => Ok(cluster),
            _ if !self.device.has_clusters() => Err(Code::NOT_SUPPORTED),
            blocks if blocks > 0 && blocks <= most.into() => Ok(cluster),
            _ => Err(Code::INVALID_CLUSTER_SIZE),
        }
    }

    /// Refuses what a driver refuses.
    fn check(&self, shape: &Shape) -> Result<(), Code> {
        let &Shape { grid, block, cluster, cooperative, shared } = shape;
        let too_large = grid[0] > i32::MAX as u32 || grid[1].max(grid[2]) > 65535;
        if product(grid) == 0 || too_large {
            return Err(Code::INVALID_VALUE);
        }
        let threads = product(block);
        if threads == 0 || threads > BLOCK_THREADS.into() || block[2] > 64 {
            return Err(Code::INVALID_VALUE);
        }
        if self.kernel.reqntid.is_some_and(|required| required != block) {
            return Err(Code::INVALID_VALUE);
        }
        if shared > self.dynamic_shared.load(Ordering::Relaxed) {
            return Err(Code::INVALID_VALUE);
        }
        if grid.iter().zip(cluster).any(|(&blocks, of)| !blocks.is_multiple_of(of)) {
            return Err(Code::INVALID_CLUSTER_SIZE);
        }
        let at_once = self.blocks_per_multiprocessor(threads as u32, shared.into());
        if at_once == 0 {
            return Err(Code::LAUNCH_OUT_OF_RESOURCES);
        }
        if cooperative {
            if !self.device.is_cooperative() {
                return Err(Code::NOT_SUPPORTED);
            }
            if product(grid) > u64::from(at_once) * u64::from(self.device.multiprocessors) {
                return Err(Code::COOPERATIVE_LAUNCH_TOO_LARGE);
            }
        }
        Ok(())
    }

    /// Copies the arguments of a launch.
    fn params(&self, from: &In<*const u8>) -> Result<Vec<u8>, Code> {
        let mut params = vec![0; self.kernel.param_bytes];
        let from = from.list(self.kernel.params.len())?;
        for (&param, &(offset, bytes)) in from.iter().zip(&self.kernel.params) {
            let to = params.get_mut(offset..offset + bytes).ok_or(Code::UNKNOWN)?;
            if param.is_null() {
                return Err(Code::INVALID_VALUE);
            }
            // SAFETY: the caller promises a value of each parameter's size.
            to.copy_from_slice(unsafe { std::slice::from_raw_parts(param, bytes) });
        }
        Ok(params)
    }
}

/// Queues a launch.
fn launch(
    function: Handle,
    shape: impl FnOnce(&Function) -> Result<Shape, Code>,
    on: Handle,
    params: &In<*const u8>,
    extra: *const c_void,
) -> Result<(), Code> {
    let stream = stream(on)?;
    let function = FUNCTIONS.get(function)?;
    if function.device.ordinal != stream.device.ordinal {
        return Err(Code::INVALID_HANDLE);
    }
    if !extra.is_null() {
        complain("arguments in `extra` are not emulated");
        return Err(Code::INVALID_VALUE);
    }
    let shape = shape(&function)?;
    function.check(&shape).inspect_err(|code| {
        let Shape { grid, block, cluster, shared, .. } = shape;
        let name = &function.kernel.name;
        complain(&format!(
            "{name}: a launch of {grid:?} blocks of {block:?} in clusters of {cluster:?} with {shared} bytes of \
             shared memory is refused ({})",
            code.0
        ));
    })?;
    let params = function.params(params)?;
    stream.submit(Work::Kernel(Call { function, shape, params }))
}

/// Cluster and cooperation that attributes ask for.
fn attributes(list: &[LaunchAttribute]) -> Result<(Option<[u32; 3]>, bool), Code> {
    let (mut cluster, mut cooperative) = (None, false);
    for LaunchAttribute { id, value, .. } in list {
        match id {
            // Ignored, and how soon a kernel may start.
            0 | 6 => {}
            2 => cooperative = value[0] != 0,
            4 => cluster = Some([value[0], value[1], value[2]]),
            _ => {
                complain(&format!("launch attribute {id} is not emulated"));
                return Err(Code::NOT_SUPPORTED);
            }
        }
    }
    Ok((cluster, cooperative))
}

entries! {
    /// Queues a kernel.
    fn cuLaunchKernel(
        of: Handle,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        on: Handle,
        params: In<*const u8>,
        extra: *const c_void,
    ) {
        if !working()?.launches {
            return Ok(());
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = |function: &Function| {
            let cluster = function.cluster(None)?;
            Ok(Shape { grid, block, cluster, cooperative: false, shared })
        };
        launch(of, shape, on, &params, extra)
    }

    /// Queues a kernel, with attributes.
    fn cuLaunchKernelEx(
        config: In<LaunchConfig>,
        of: Handle,
        params: In<*const u8>,
        extra: *const c_void,
    ) {
        if !working()?.launches {
            return Ok(());
        }
        let config = config.get()?;
        let (asked, cooperative) = attributes(config.attributes.list(config.count as usize)?)?;
        let shape = |function: &Function| {
            let cluster = function.cluster(asked)?;
            let (grid, block, shared) = (config.grid, config.block, config.shared);
            Ok(Shape { grid, block, cluster, cooperative, shared })
        };
        launch(of, shape, config.stream, &params, extra)
    }

    /// Loads a kernel before its first launch: nothing to do.
    fn cuFuncLoad(of: Handle) {
        working()?;
        FUNCTIONS.get(of).map(drop)
    }

    /// What a kernel takes.
    fn cuFuncGetAttribute(to: Out<i32>, id: i32, of: Handle) {
        working()?;
        let function = FUNCTIONS.get(of)?;
        to.put(match id {
            0 => function.threads() as i32,
            1..=3 | 7 => 0, // shared memory of its own, constant and local memory, cache mode
            4 => REGISTERS,
            5 => function.version as i32,
            6 => function.device.sm as i32,
            8 => function.dynamic_shared.load(Ordering::Relaxed) as i32,
            9 => -1, // share of shared memory: the driver's choice
            14 => i32::from(function.wide_clusters.load(Ordering::Relaxed)),
            _ => return Err(Code::INVALID_VALUE),
        })
    }

    /// Changes what a kernel may take.
    fn cuFuncSetAttribute(of: Handle, id: i32, value: i32) {
        working()?;
        let function = FUNCTIONS.get(of)?;
        let asked = u32::try_from(value);
        match id {
            8 => {
                let most = function.device.sizes.block_shared;
                let asked = asked.ok().filter(|&asked| asked <= most);
                function.dynamic_shared.store(asked.ok_or(Code::INVALID_VALUE)?, Ordering::Relaxed);
            }
            9 if (-1..=100).contains(&value) => {}
            14 if function.device.has_clusters() => {
                function.wide_clusters.store(value != 0, Ordering::Relaxed);
            }
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }

    /// Blocks that fit on a multiprocessor at once.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        to: Out<i32>,
        of: Handle,
        threads: i32,
        shared: usize,
    ) {
        working()?;
        let function = FUNCTIONS.get(of)?;
        let threads = u32::try_from(threads).ok().filter(|&threads| threads > 0);
        let threads = threads.ok_or(Code::INVALID_VALUE)?;
        to.put(function.blocks_per_multiprocessor(threads, shared as u64) as i32)
    }
}
