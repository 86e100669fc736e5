//! Runs of [`crate::ops::rope`].

use super::{Bed, Run, RunError};
use crate::ops::rope::{Rope, RopeTable};
use crate::ops::{Backend, OpError};
use crate::reference::rope::table;

/// Angles of a rotary embedding.
#[derive(Clone, Debug)]
pub struct Angles {
    /// Positions covered.
    pub positions: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// `[positions, head_dim / 2]`.
    pub cos: Vec<f32>,
    /// `[positions, head_dim / 2]`.
    pub sin: Vec<f32>,
}

impl Angles {
    /// The table that a model has: see [`RopeTable::new`].
    pub fn new(positions: usize, head_dim: usize, theta: f64) -> Self {
        let (cos, sin) = table(positions, head_dim, theta);
        Self { positions, head_dim, cos, sin }
    }

    pub(super) fn on<B: Backend>(&self, bed: &Bed<'_, B>) -> Result<RopeTable<B>, OpError> {
        let &Self { positions, head_dim, .. } = self;
        Ok(RopeTable {
            cos: bed.input(&self.cos)?,
            sin: bed.input(&self.sin)?,
            positions,
            head_dim,
        })
    }
}

/// Inputs of one run.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The table.
    pub angles: Angles,
    /// Rows of `row_stride` elements, the last one cut behind its heads.
    pub x: Vec<f32>,
    /// Rows.
    pub m: usize,
    /// Heads to rotate.
    pub heads: usize,
    /// Elements between two rows.
    pub row_stride: usize,
    /// Position of row 0.
    pub start: u32,
}

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let table = self.angles.on(bed)?;
        let mut x = bed.input(&self.x)?;
        let start = bed.input(&[u32::MAX, self.start])?;
        bed.backend().rope(Rope {
            x: &mut x,
            table: &table,
            start: &start,
            start_at: 1,
            m: self.m,
            heads: self.heads,
            row_stride: self.row_stride,
        })?;
        bed.keep("x", &[self.x.len()], &x)
    }
}
