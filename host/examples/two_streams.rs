//! Two streams with a dependency: one prepares data, the other copies it once it is there.
//!
//! `cargo run --features cuda --example two_streams`

use bitnet_gpu::driver::{CudaError, Device, Stream, StreamOptions};
use bitnet_gpu::memory::{Pool, PoolOptions};

fn main() -> Result<(), CudaError> {
    let device = Device::open(0)?;
    let pool = Pool::new(&device, PoolOptions::default());
    let prepare = Stream::new(&device, StreamOptions::default())?;
    let copy = Stream::new(&device, StreamOptions::default())?;

    let data: Vec<u32> = (0..1_000_000).collect();
    let source = pool.from_slice(&prepare, &data, "source")?;
    let mut target = pool.alloc::<u32>(&copy, data.len(), "target")?;

    // Without this the copy could run before the upload.
    copy.wait(&prepare)?;
    target.as_slice_mut().copy_from(&copy, source.as_slice())?;

    assert_eq!(target.download(&copy)?, data);
    println!("{} words went over two streams of {}", data.len(), device.info().name);
    Ok(())
}
