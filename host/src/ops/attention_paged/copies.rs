//! Pages of all layers that become like others: what a sequence takes over from one that began alike.

use std::collections::HashSet;

use contract::w2a8::MAX_ROWS;

use super::{Heads, OP, PageType, PagedCache};
use crate::ops::decode_layers::pair_words;
use crate::ops::error::{dimension, elements, same};
use crate::ops::{Backend, OpError};

/// Where the pages of the layers are, and which of them are copied.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "what the kernel reads"))]
pub struct PageCopies<B: Backend> {
    /// What `sides` holds.
    addresses: Vec<u32>,
    /// Addresses of keys and values, layer by layer.
    sides: B::Buf<u32>,
    /// Pages of each cache.
    pages: usize,
    /// What `words` holds.
    pairs: Vec<[u32; 2]>,
    words: B::Buf<u32>,
    most: usize,
}

impl<B: Backend> PageCopies<B> {
    /// For `caches`, one for each layer, and up to `most` pages at once.
    ///
    /// # Errors
    /// No cache or more than 32,767, no page; out of memory.
    pub fn new(backend: &B, caches: &[PagedCache<B>], most: usize) -> Result<Self, OpError> {
        dimension(OP, "layers", caches.len(), 32_767, "1 to 32,767 are allowed")?;
        dimension(OP, "pages at once", most, MAX_ROWS, "1 to 2^24 are allowed")?;
        let addresses = addresses(backend, caches);
        let mut sides = backend.alloc("page tables", addresses.len())?;
        backend.write(&mut sides, 0, &addresses)?;
        let words = backend.alloc("page tables", 2 * most)?;
        let pages = caches.first().map_or(0, |cache| cache.pages);
        Ok(Self { addresses, sides, pages, pairs: Vec::new(), words, most })
    }

    /// Writes to the device, behind the operations that are queued, which pages are copied: a page, and the one that becomes like it.
    ///
    /// # Errors
    /// No pair or more than there is room for, pages that are not there, that are written twice, or read too; a failed copy. Then the pairs are what they were.
    pub fn write(&mut self, backend: &B, pairs: &[[u32; 2]]) -> Result<(), OpError> {
        dimension(OP, "pages at once", pairs.len(), self.most, "1 to those of the table")?;
        let mut written = HashSet::new();
        let allowed = "pages that are there; one that is written is not read, and written once";
        let refused = |page: u32| {
            Err(OpError::Dimension { op: OP, what: "page", found: page as usize, allowed })
        };
        for &[from, to] in pairs {
            let there = [from, to].iter().all(|&page| (page as usize) < self.pages);
            if !there || !written.insert(to) {
                return refused(to);
            }
        }
        if let Some([from, _]) = pairs.iter().find(|[from, _]| written.contains(from)) {
            return refused(*from);
        }
        backend.write(&mut self.words, 0, pairs.as_flattened())?;
        self.pairs = pairs.to_vec();
        Ok(())
    }

    fn layers(&self) -> usize {
        self.addresses.len() / 4
    }
}

fn addresses<B: Backend>(backend: &B, caches: &[PagedCache<B>]) -> Vec<u32> {
    pair_words(backend, caches.iter().map(|cache| [&cache.k, &cache.v]))
}

/// Copies pages in the caches of all layers.
pub struct CopyPages<'a, B: Backend> {
    /// A cache for each layer, those of `table`.
    pub caches: &'a mut [PagedCache<B>],
    /// Heads of every layer.
    pub heads: Heads,
    /// Made for these caches, and written.
    pub table: &'a PageCopies<B>,
}

impl<B: Backend> CopyPages<'_, B> {
    /// Bytes of a page, which all caches agree on.
    ///
    /// # Errors
    /// Caches that differ, or that are not those of the table; a table that was not written.
    pub fn check(&self, backend: &B) -> Result<usize, OpError> {
        let Self { caches, heads, table } = self;
        heads.check(OP)?;
        same(OP, "layers of the table", table.layers(), caches.len())?;
        dimension(OP, "pages at once", table.pairs.len(), table.most, "1 to those of the table")?;
        let Some(first) = caches.first() else { return Ok(0) };
        for cache in caches.iter() {
            cache.check(*heads)?;
            same(OP, "pages of the layers", cache.pages, table.pages)?;
            let bytes = |element: PageType| element.part_bytes(heads.head_dim);
            same(OP, "bytes of a page", bytes(cache.element), bytes(first.element))?;
        }
        let others = addresses(backend, caches) != table.addresses;
        same(OP, "caches that are not those of the table", others.into(), 0)?;
        elements(OP, &[heads.kv_heads, first.element.part_bytes(heads.head_dim)])
    }
}

impl CopyPages<'_, crate::cpu::CpuBackend> {
    pub(crate) fn run(self, cpu: &crate::cpu::CpuBackend) -> Result<(), OpError> {
        let page = self.check(cpu)?;
        for cache in self.caches {
            for side in [&mut cache.k, &mut cache.v] {
                for &[from, to] in &self.table.pairs {
                    cpu.copy_within(side, from as usize * page, to as usize * page, page)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(feature = "cuda")]
impl CopyPages<'_, crate::ops::CudaBackend> {
    pub(in crate::ops) fn launch(self, cuda: &crate::ops::CudaBackend) -> Result<(), OpError> {
        use contract::attention_paged::{CopyArgs, CopyPages, copy_grid};
        let page_bytes = self.check(cuda)?;
        let Self { table, .. } = self;
        let grid = copy_grid(table.pairs.len() as u32, 2 * table.layers() as u32);
        let stream = cuda.stream();
        let args = CopyArgs {
            sides: table.sides.dev_ptr(stream),
            pairs: table.words.dev_ptr(stream),
            page_bytes: page_bytes as u64,
            pages: table.pages as u32,
        };
        // SAFETY: `check` compared the addresses with the caches, which are borrowed exclusively, and these with the table's number of pages, with which
        // `PageCopies::write` compared the pairs, as with each other.
        unsafe { cuda.launch::<CopyPages>(grid, args) }
    }
}
