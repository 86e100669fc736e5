//! Shared memory of the block: one dynamically sized array, addressed in its own space.
//!
//! A [`Shared`] is a 32-bit address of the shared space, not a Rust pointer: loads and stores
//! through it are `ld.shared` and `st.shared`, never the slower generic forms. How many bytes
//! there are is the kernel's `LaunchSpec::smem_bytes`.

use core::arch::{asm, global_asm};
use core::marker::PhantomData;

use super::warp::Register;

global_asm!(".extern .shared .align 128 .b8 bitnet_dynamic_smem[];");

/// The address of a `T` in shared memory.
pub struct Shared<T> {
    addr: u32,
    elem: PhantomData<*mut T>,
}

impl<T> Clone for Shared<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

/// The start of the block's dynamic shared memory, aligned to 128 bytes.
/// `mov.u32 p, bitnet_dynamic_smem`
#[inline(always)]
pub fn dynamic_shared_mem<T>() -> Shared<T> {
    let addr: u32;
    // SAFETY: takes an address.
    unsafe {
        asm!(
            "mov.u32 {addr}, bitnet_dynamic_smem;",
            addr = out(reg32) addr,
            options(pure, nomem, nostack),
        );
    }
    Shared { addr, elem: PhantomData }
}

impl<T> Shared<T> {
    /// The address `count` elements further.
    #[inline(always)]
    #[must_use]
    pub fn add(self, count: u32) -> Self {
        Self { addr: self.addr + count * size_of::<T>() as u32, elem: PhantomData }
    }

    /// The address `bytes` further.
    #[inline(always)]
    #[must_use]
    pub fn byte_add(self, bytes: u32) -> Self {
        Self { addr: self.addr + bytes, elem: PhantomData }
    }

    /// The same address with another element type.
    #[inline(always)]
    pub fn cast<U>(self) -> Shared<U> {
        Shared { addr: self.addr, elem: PhantomData }
    }

    /// The same address, kept in a register: otherwise it is made anew wherever it is used, in several steps on some GPUs. `mov.b32`
    #[inline(always)]
    #[must_use]
    pub fn kept(self) -> Self {
        Self { addr: super::hint::opaque(self.addr), elem: PhantomData }
    }

    /// The address in the shared space, for instructions that take one.
    #[inline(always)]
    pub fn addr(self) -> u32 {
        self.addr
    }

    /// The same place as a pointer, for intrinsics that take one. `cvta.shared.u64`
    #[inline(always)]
    pub fn generic(self) -> *const u8 {
        let pointer: u64;
        // SAFETY: converts an address.
        unsafe {
            asm!(
                "cvta.shared.u64 {pointer}, {addr};",
                pointer = out(reg64) pointer, addr = in(reg64) u64::from(self.addr),
                options(pure, nomem, nostack),
            );
        }
        pointer as *const u8
    }
}

impl<T: Register> Shared<T> {
    /// `ld.shared.b32`
    ///
    /// # Safety
    ///
    /// The address lies inside the block's shared memory, is aligned to 4, and no other thread
    /// writes the word without a barrier between.
    #[inline(always)]
    pub unsafe fn read(self) -> T {
        let word: i32;
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "ld.shared.b32 {word}, [{addr}];",
                word = out(reg32) word, addr = in(reg32) self.addr,
                options(pure, readonly, nostack),
            );
        }
        T::from_word(word)
    }

    /// `st.shared.b32`
    ///
    /// # Safety
    ///
    /// As for [`Shared::read`], and no other thread reads the word without a barrier between.
    #[inline(always)]
    pub unsafe fn write(self, value: T) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "st.shared.b32 [{addr}], {word};",
                addr = in(reg32) self.addr, word = in(reg32) value.to_word(),
                options(nostack),
            );
        }
    }

    /// Two neighbours. `ld.shared.v2.b32`
    ///
    /// # Safety
    ///
    /// As for [`Shared::read`], of both; the address is aligned to 8.
    #[inline(always)]
    pub unsafe fn read_x2(self) -> [T; 2] {
        let (a, b): (i32, i32);
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "ld.shared.v2.b32 {{{a}, {b}}}, [{addr}];",
                a = out(reg32) a, b = out(reg32) b, addr = in(reg32) self.addr,
                options(pure, readonly, nostack),
            );
        }
        [T::from_word(a), T::from_word(b)]
    }

    /// Four neighbours. `ld.shared.v4.b32`
    ///
    /// # Safety
    ///
    /// As for [`Shared::read`], of all four; the address is aligned to 16.
    #[inline(always)]
    pub unsafe fn read_x4(self) -> [T; 4] {
        let (a, b, c, d): (i32, i32, i32, i32);
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "ld.shared.v4.b32 {{{a}, {b}, {c}, {d}}}, [{addr}];",
                a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d,
                addr = in(reg32) self.addr,
                options(pure, readonly, nostack),
            );
        }
        [T::from_word(a), T::from_word(b), T::from_word(c), T::from_word(d)]
    }

    /// Four neighbours, or zeros when `enabled` does not hold. `@enabled ld.shared.v4.b32`
    ///
    /// # Safety
    ///
    /// When `enabled`: as for [`Shared::read_x4`].
    #[inline(always)]
    pub unsafe fn read_x4_if(self, enabled: bool) -> [T; 4] {
        let (a, b, c, d): (i32, i32, i32, i32);
        // SAFETY: the caller's promise; the load is not executed unless `enabled`.
        unsafe {
            asm!(
                "{{",
                ".reg .pred on;",
                "setp.ne.u32 on, {enabled}, 0;",
                "mov.b32 {a}, 0; mov.b32 {b}, 0; mov.b32 {c}, 0; mov.b32 {d}, 0;",
                "@on ld.shared.v4.b32 {{{a}, {b}, {c}, {d}}}, [{addr}];",
                "}}",
                a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d,
                addr = in(reg32) self.addr, enabled = in(reg32) u32::from(enabled),
                options(pure, readonly, nostack),
            );
        }
        [T::from_word(a), T::from_word(b), T::from_word(c), T::from_word(d)]
    }

    /// Four neighbours, or unspecified values when `enabled` does not hold. `@enabled ld.shared.v4.b32`
    ///
    /// # Safety
    ///
    /// When `enabled`: as for [`Shared::read_x4`].
    #[inline(always)]
    pub unsafe fn read_x4_or_any(self, enabled: bool) -> [T; 4] {
        let (a, b, c, d): (i32, i32, i32, i32);
        // SAFETY: the caller's promise; the load is not executed unless `enabled`.
        unsafe {
            asm!(
                "{{",
                ".reg .pred on;",
                "setp.ne.u32 on, {enabled}, 0;",
                "@on ld.shared.v4.b32 {{{a}, {b}, {c}, {d}}}, [{addr}];",
                "}}",
                a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d,
                addr = in(reg32) self.addr, enabled = in(reg32) u32::from(enabled),
                options(pure, readonly, nostack),
            );
        }
        [T::from_word(a), T::from_word(b), T::from_word(c), T::from_word(d)]
    }

    /// Two neighbours. `st.shared.v2.b32`
    ///
    /// # Safety
    ///
    /// As for [`Shared::write`], of both; the address is aligned to 8.
    #[inline(always)]
    pub unsafe fn write_x2(self, value: [T; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "st.shared.v2.b32 [{addr}], {{{a}, {b}}};",
                addr = in(reg32) self.addr,
                a = in(reg32) value[0].to_word(), b = in(reg32) value[1].to_word(),
                options(nostack),
            );
        }
    }

    /// Four neighbours. `st.shared.v4.b32`
    ///
    /// # Safety
    ///
    /// As for [`Shared::write`], of all four; the address is aligned to 16.
    #[inline(always)]
    pub unsafe fn write_x4(self, value: [T; 4]) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "st.shared.v4.b32 [{addr}], {{{a}, {b}, {c}, {d}}};",
                addr = in(reg32) self.addr,
                a = in(reg32) value[0].to_word(), b = in(reg32) value[1].to_word(),
                c = in(reg32) value[2].to_word(), d = in(reg32) value[3].to_word(),
                options(nostack),
            );
        }
    }
}

impl Shared<u32> {
    /// Adds and returns the value before. `atom.shared.add.u32`
    ///
    /// # Safety
    ///
    /// The address lies inside the block's shared memory and is aligned to 4; between two
    /// barriers the word is accessed by this function alone.
    #[inline(always)]
    pub unsafe fn atomic_add(self, value: u32) -> u32 {
        let old: u32;
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "atom.shared.add.u32 {old}, [{addr}], {value};",
                old = out(reg32) old, addr = in(reg32) self.addr, value = in(reg32) value,
                options(nostack),
            );
        }
        old
    }
}

impl Shared<u16> {
    /// Two bytes. `st.shared.b16`
    ///
    /// # Safety
    ///
    /// As for a word, of 2 bytes aligned to 2.
    #[inline(always)]
    pub unsafe fn write_u16(self, value: u16) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "st.shared.b16 [{addr}], {value};",
                addr = in(reg32) self.addr, value = in(reg16) value,
                options(nostack),
            );
        }
    }

    /// Two bytes. `ld.shared.b16`
    ///
    /// # Safety
    ///
    /// As for a word, of 2 bytes aligned to 2.
    #[inline(always)]
    pub unsafe fn read_u16(self) -> u16 {
        let value: u16;
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "ld.shared.b16 {value}, [{addr}];",
                value = out(reg16) value, addr = in(reg32) self.addr,
                options(pure, readonly, nostack),
            );
        }
        value
    }
}

impl Shared<i16> {
    /// Two bytes, extended with their sign. `ld.shared.s16`
    ///
    /// # Safety
    ///
    /// As for a word, of 2 bytes aligned to 2.
    #[inline(always)]
    pub unsafe fn read_i16(self) -> i32 {
        let value: i32;
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "ld.shared.s16 {value}, [{addr}];",
                value = out(reg32) value, addr = in(reg32) self.addr,
                options(pure, readonly, nostack),
            );
        }
        value
    }
}

impl Shared<i8> {
    /// A byte, extended with its sign. `ld.shared.s8`
    ///
    /// # Safety
    ///
    /// As for a word, of 1 byte.
    #[inline(always)]
    pub unsafe fn read_i8(self) -> i32 {
        let value: i32;
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "ld.shared.s8 {value}, [{addr}];",
                value = out(reg32) value, addr = in(reg32) self.addr,
                options(pure, readonly, nostack),
            );
        }
        value
    }
}

impl Shared<u8> {
    /// One byte. `st.shared.b8`
    ///
    /// # Safety
    ///
    /// As for a word, of 1 byte.
    #[inline(always)]
    pub unsafe fn write_u8(self, value: u8) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "st.shared.b8 [{addr}], {value};",
                addr = in(reg32) self.addr, value = in(reg32) u32::from(value),
                options(nostack),
            );
        }
    }

    /// The low byte of a word. `st.shared.b8`
    ///
    /// # Safety
    ///
    /// As for [`Shared::write_u8`].
    #[inline(always)]
    pub unsafe fn write_low_byte(self, word: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "{{",
                ".reg .b16 low, high;",
                "mov.b32 {{low, high}}, {word};",
                "st.shared.b8 [{addr}], low;",
                "}}",
                addr = in(reg32) self.addr, word = in(reg32) word,
                options(nostack),
            );
        }
    }
}

impl Shared<u64> {
    /// `ld.shared.v2.b32`
    ///
    /// # Safety
    ///
    /// As for a word, of 8 bytes aligned to 8.
    #[inline(always)]
    pub unsafe fn read_u64(self) -> u64 {
        let (low, high): (u32, u32);
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "ld.shared.v2.b32 {{{low}, {high}}}, [{addr}];",
                low = out(reg32) low, high = out(reg32) high, addr = in(reg32) self.addr,
                options(pure, readonly, nostack),
            );
        }
        u64::from(low) | u64::from(high) << 32
    }

    /// `st.shared.v2.b32`
    ///
    /// # Safety
    ///
    /// As for a word, of 8 bytes aligned to 8.
    #[inline(always)]
    pub unsafe fn write_u64(self, value: u64) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "st.shared.v2.b32 [{addr}], {{{low}, {high}}};",
                addr = in(reg32) self.addr,
                low = in(reg32) value as u32, high = in(reg32) (value >> 32) as u32,
                options(nostack),
            );
        }
    }

    /// Adds to a 64-bit counter by 32-bit instructions, which the hardware has in shared memory:
    /// whoever makes the low word wrap carries into the high one.
    ///
    /// # Safety
    ///
    /// The address lies inside the block's shared memory and is aligned to 8; between two
    /// barriers the counter is accessed by this function alone.
    #[inline(always)]
    pub unsafe fn count(self, value: u32) {
        let low = self.cast::<u32>();
        // SAFETY: the caller's promise, for both words.
        unsafe {
            if low.atomic_add(value).checked_add(value).is_none() {
                low.add(1).atomic_add(1);
            }
        }
    }
}
