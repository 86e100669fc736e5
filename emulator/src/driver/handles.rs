//! What callers know the driver's objects by: numbers, so that a stale one is refused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::code::Code;

/// An object of the driver, opaque to callers: not an address.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub(super) usize);

impl Handle {
    /// No object.
    pub(super) const NULL: Self = Self(0);
}

/// Live objects of one type. No two handles are equal, of whatever tables.
pub(super) struct Table<T>(RwLock<BTreeMap<usize, Arc<T>>>);

impl<T> Table<T> {
    pub(super) const fn new() -> Self {
        Self(RwLock::new(BTreeMap::new()))
    }

    pub(super) fn insert(&self, object: Arc<T>) -> Handle {
        static NEXT: AtomicUsize = AtomicUsize::new(1 << 20);
        let number = NEXT.fetch_add(16, Ordering::Relaxed);
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(number, object);
        Handle(number)
    }

    pub(super) fn get(&self, handle: Handle) -> Result<Arc<T>, Code> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.get(&handle.0).cloned().ok_or(Code::INVALID_HANDLE)
    }

    pub(super) fn remove(&self, handle: Handle) -> Result<Arc<T>, Code> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.remove(&handle.0).ok_or(Code::INVALID_HANDLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_of_one_table_and_ends() {
        let (words, numbers) = (Table::new(), Table::new());
        let word = words.insert(Arc::new("a"));
        let number = numbers.insert(Arc::new(1));
        assert!(word != number && word != Handle::NULL);
        assert_eq!(*words.get(word).expect("there"), "a");
        assert_eq!(words.get(number).err(), Some(Code::INVALID_HANDLE));
        assert!(words.remove(word).is_ok() && words.remove(word).is_err());
        assert_eq!(words.get(word).err(), Some(Code::INVALID_HANDLE));
    }
}
