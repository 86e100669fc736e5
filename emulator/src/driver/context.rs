//! Contexts: every device has its primary one, and threads make them current.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use super::code::Code;
use super::device::{CURRENT, Device, current, device, devices, working};
use super::handles::Handle;
use super::{Out, entries};

/// The handle of the first device's context; the others follow at this distance.
const FIRST: usize = 0xC000;
const STEP: usize = 16;

fn handle(device: &Device) -> Handle {
    Handle(FIRST + STEP * device.ordinal)
}

/// The device of a context that somebody holds.
fn context(of: Handle) -> Result<&'static Device, Code> {
    let mut open = devices()?.iter().filter(|device| device.is_open());
    open.find(|device| handle(device) == of).ok_or(Code::INVALID_CONTEXT)
}

thread_local! {
    /// `CUstreamCaptureMode`.
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
}

entries! {
    /// The primary context of a device, to be released as often.
    fn cuDevicePrimaryCtxRetain(to: Out<Handle>, of: i32) {
        let device = device(of)?;
        device.retained.fetch_add(1, Ordering::AcqRel);
        to.put(handle(device))
    }

    /// Takes back a retain. The last one destroys the context.
    fn cuDevicePrimaryCtxRelease_v2(of: i32) {
        let device = device(of)?;
        let fewer = |count: u32| count.checked_sub(1);
        let before = device.retained.try_update(Ordering::AcqRel, Ordering::Acquire, fewer);
        match before {
            Err(_) => return Err(Code::INVALID_CONTEXT),
            Ok(1) => device.reset(),
            Ok(_) => {}
        }
        Ok(())
    }

    /// Flags of the primary context: they only say how a thread waits.
    fn cuDevicePrimaryCtxSetFlags_v2(of: i32, _flags: u32) {
        device(of).map(drop)
    }

    /// Makes a context current on this thread in place of the one that is, or none.
    fn cuCtxSetCurrent(to: Handle) {
        let device = if to == Handle::NULL { None } else { Some(context(to)?) };
        CURRENT.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend(device);
        });
        Ok(())
    }

    /// The current context, or null.
    fn cuCtxGetCurrent(to: Out<Handle>) {
        devices()?;
        to.put(CURRENT.with_borrow(|stack| stack.last().map_or(Handle::NULL, |top| handle(top))))
    }

    /// Makes a context current on this thread until it is popped.
    fn cuCtxPushCurrent_v2(to: Handle) {
        let device = context(to)?;
        CURRENT.with_borrow_mut(|stack| stack.push(device));
        Ok(())
    }

    /// Makes the context current that was so before the last push.
    fn cuCtxPopCurrent_v2(to: Out<Handle>) {
        devices()?;
        let top = CURRENT.with_borrow_mut(Vec::pop).ok_or(Code::INVALID_CONTEXT)?;
        if to.is_null() { Ok(()) } else { to.put(handle(top)) }
    }

    /// The device of the current context.
    fn cuCtxGetDevice(to: Out<i32>) {
        to.put(current()?.ordinal as i32)
    }

    /// Least and greatest stream priority.
    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        working()?;
        least.put(0)?;
        greatest.put(-5)
    }

    /// Waits for all work of the current context.
    fn cuCtxSynchronize() {
        let device = current()?;
        device.wait();
        device.state()
    }

    /// Exchanges what this thread may do while streams are captured. It may do everything here.
    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        let wanted = mode.get()?;
        if wanted > 2 {
            return Err(Code::INVALID_VALUE);
        }
        mode.put(CAPTURE_MODE.replace(wanted))
    }
}
