//! Records work once and replays it with one call; the graph keeps the buffers that it uses.
//!
//! `cargo run --features cuda --example graph`

use bitnet_gpu::driver::{CudaError, Device, Stream, StreamOptions};
use bitnet_gpu::memory::{Pool, PoolOptions};

fn main() -> Result<(), CudaError> {
    let device = Device::open(0)?;
    let pool = Pool::new(&device, PoolOptions::default());
    let stream = Stream::new(&device, StreamOptions::default())?;

    // Each replay moves the ring on by one word.
    let mut ring = pool.from_slice(&stream, &[1u32, 2, 3, 4], "ring")?;
    let mut first = pool.alloc::<u32>(&stream, 1, "first")?;
    let mut rest = pool.alloc::<u32>(&stream, 3, "rest")?;
    let (graph, ()) = stream.capture(|s| -> Result<(), CudaError> {
        first.as_slice_mut().copy_from(s, ring.slice(..1)?)?;
        rest.as_slice_mut().copy_from(s, ring.slice(1..)?)?;
        ring.slice_mut(..3)?.copy_from(s, rest.as_slice())?;
        ring.slice_mut(3..)?.copy_from(s, first.as_slice())?;
        Ok(())
    })?;
    // The graph holds on to what it needs.
    drop((first, rest));

    for _ in 0..5 {
        graph.launch(&stream)?;
    }
    assert_eq!(ring.download(&stream)?, [2, 3, 4, 1]);
    println!("{} nodes, replayed 5 times on {}", graph.node_count(), device.info().name);
    Ok(())
}
