//! What a builder makes of loaded models: one sequence, or a batch.

use super::SessionBuilder;
use crate::model::{
    Batch, BatchOptions, HeadKind, MAX_DRAFT_ROWS, Model, PAGE_SIZE, Sequence, SequenceOptions,
};
use crate::ops::{Backend, Math, OpError};
use crate::session::SessionError;
use crate::session::engine::{Engine, Runner};
use crate::session::group::Group;
use crate::session::runner::{BatchRunner, Batched};
use crate::session::solo::Solo;

/// Tokens of prompts beside a step of a batch when no number is asked for.
const PROMPT_SHARE: usize = 768;
/// Requests of a batch when no number is asked for.
const DEFAULT_BATCH: usize = 32;
/// Rows of a step of drafts of a batch: those of one text, and as many for several together.
const DRAFT_ROWS: usize = 32;

/// What is made of a loaded model.
pub(super) trait Make {
    /// Whether it runs on several devices.
    const TAKES_SEVERAL: bool;
    /// What is made for one device, with the backend's type forgotten.
    type Engine;

    fn one<B: Backend>(
        &self,
        model: Model<B>,
        settings: &SessionBuilder,
        context: usize,
    ) -> Result<(Self::Engine, HeadKind), SessionError>;

    /// One of those of all devices, each with its device's name.
    fn all(&self, engines: Vec<(String, Self::Engine)>) -> Result<Self::Engine, SessionError>;
}

impl SessionBuilder {
    /// Tokens of a text that are guessed at once.
    fn drafts<B: Backend>(&self, model: &Model<B>, context: usize) -> usize {
        let splits = model.backend().splits(model.heads(), self.page_type(), context);
        self.lookup.tokens(splits && self.attention == Math::Exact)
    }

    /// Requests at once, and what runs them.
    fn batch<B: Backend>(
        &self,
        model: Model<B>,
        context: usize,
        max_batch: usize,
        pages: usize,
    ) -> Result<(BatchRunner<B>, HeadKind), SessionError> {
        let drafts = self.drafts(&model, context);
        if drafts >= MAX_DRAFT_ROWS {
            let (what, found, allowed) = ("tokens of a lookup", drafts, "0 to 255 are allowed");
            return Err(OpError::Dimension { op: "session", what, found, allowed }.into());
        }
        let options = |model: &Model<B>| {
            let chunk = self.chunk(model, context, pages);
            let draft_rows = if drafts == 0 { 0 } else { (drafts + 1).max(DRAFT_ROWS).min(chunk) };
            BatchOptions {
                max_batch,
                capacity: context,
                pages,
                kv: self.page_type(),
                chunk,
                prompt_share: self.prompt_share.unwrap_or(PROMPT_SHARE),
                prefix_cache: !self.no_prefix_cache,
                one_kernel: !self.no_one_kernel,
                draft_rows,
            }
        };
        let (model, batch) = self.with_head(model, |model| Batch::new(model, options(model)))?;
        model.backend().synchronize()?;
        let head = model.head_kind();
        Ok((BatchRunner::new(model, batch, self.records(), drafts), head))
    }
}

/// One sequence.
pub(super) struct One;

impl Make for One {
    const TAKES_SEVERAL: bool = false;
    type Engine = Box<dyn Engine>;

    fn one<B: Backend>(
        &self,
        model: Model<B>,
        settings: &SessionBuilder,
        context: usize,
    ) -> Result<(Self::Engine, HeadKind), SessionError> {
        let pages = context.div_ceil(PAGE_SIZE);
        if settings.drafts(&model, context) > 0 {
            let (runner, head) = settings.batch(model, context, 1, pages)?;
            return Ok((Box::new(Solo::new(runner)), head));
        }
        let (kv, one_kernel) = (settings.kv_type()?, !settings.no_one_kernel);
        let (model, sequence) = settings.with_head(model, |model| {
            let chunk = settings.chunk(model, context, pages);
            Sequence::new(model, SequenceOptions { capacity: context, kv, chunk, one_kernel })
        })?;
        model.backend().synchronize()?;
        let head = model.head_kind();
        Ok((Box::new(Runner::new(model, sequence, settings.records())), head))
    }

    fn all(&self, mut engines: Vec<(String, Self::Engine)>) -> Result<Self::Engine, SessionError> {
        Ok(engines.remove(0).1)
    }
}

/// A batch of sequences.
pub(super) struct Many;

impl Make for Many {
    const TAKES_SEVERAL: bool = true;
    type Engine = Box<dyn Batched>;

    fn one<B: Backend>(
        &self,
        model: Model<B>,
        settings: &SessionBuilder,
        context: usize,
    ) -> Result<(Self::Engine, HeadKind), SessionError> {
        let max_batch = settings.max_batch.unwrap_or(DEFAULT_BATCH);
        let pages = settings.pages.unwrap_or(max_batch.saturating_mul(context.div_ceil(PAGE_SIZE)));
        let (runner, head) = settings.batch(model, context, max_batch, pages)?;
        Ok((Box::new(runner), head))
    }

    fn all(&self, mut engines: Vec<(String, Self::Engine)>) -> Result<Self::Engine, SessionError> {
        match engines.len() {
            1 => Ok(engines.remove(0).1),
            _ => Ok(Box::new(Group::start(engines)?)),
        }
    }
}
