//! A whole model on one backend: the weights, the state of a sequence or of a batch of them, prefill and
//! decode.

pub mod batch;
pub mod bitnet;
pub mod load;
mod logprobs;
mod pages;
pub mod sequence;

pub(crate) use batch::Needs;
pub use batch::{Batch, BatchOptions, Draft, MAX_BATCH, MAX_DRAFT_ROWS, PAGE_SIZE};
pub use bitnet::Model;
#[cfg(feature = "cuda")]
pub(crate) use bitnet::heads;
pub use load::{LoadError, LoadProgress};
pub use logprobs::{Extras, TokenLogprobs};
pub(crate) use pages::PagePool;
pub use pages::PageUsage;
pub use sequence::{Sequence, SequenceOptions};

use serde::Serialize;

use crate::ops::OpError;

/// Rows of the largest prefill step at least, where no number is asked for.
const LEAST_PREFILL_ROWS: usize = 768;

/// Tokens of each part of a prompt that runs in prefill steps of up to `chunk`: about as many of each, so that none has few rows behind many keys.
fn part(tokens: usize, chunk: usize) -> usize {
    tokens.div_ceil(tokens.div_ceil(chunk)).next_multiple_of(PAGE_SIZE).min(chunk)
}

/// How a decode step goes from the last norm to the next token. The token is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HeadKind {
    /// Every logit from the table of the checkpoint: no more memory than the model needs.
    #[default]
    Stored,
    /// An int8 copy of the table says which logits can win, and those are computed from the stored one: half
    /// the bytes of a 16-bit table for each token, for half as much memory again. What can be drawn from the whole vocabulary
    /// (a temperature without top-k, or a top-k above 256) goes by the stored table alone.
    Int8,
}

/// Why a model could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// An operation was refused or failed.
    #[error(transparent)]
    Op(#[from] OpError),
    /// A token id that the model does not have.
    #[error("token id {id} at position {index} of the input; the model has {vocab} tokens (0 to {})", vocab - 1)]
    TokenOutOfVocabulary {
        /// The id.
        id: u32,
        /// Where it stands.
        index: usize,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// Nothing to start from.
    #[error("the input is empty; give at least one token (for most models the BOS token)")]
    EmptyInput,
    /// More positions than the sequence has room for.
    #[error(
        "{needed} positions are needed and the context holds {capacity}; shorten the input or ask for a longer context"
    )]
    ContextFull {
        /// Positions needed.
        needed: usize,
        /// Positions of the sequence.
        capacity: usize,
    },
    /// Every slot of the batch has a sequence.
    #[error(
        "the batch is full: it takes {max_batch} sequences at once; remove one or make it larger"
    )]
    BatchFull {
        /// Sequences at once.
        max_batch: usize,
    },
    /// Too few pages are left for a sequence.
    #[error(
        "{needed} pages are needed and {free} of {total} are free; wait for a sequence to end, ask for \
         fewer tokens or make the pool larger"
    )]
    PagesFull {
        /// Pages for the prompt and all tokens that were asked for.
        needed: usize,
        /// Pages that nobody has.
        free: usize,
        /// Pages of the pool.
        total: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn parts_of_a_prompt_are_alike_and_no_more_than_it_takes() {
        for chunk in [1, 5, 64, 100, 768] {
            for tokens in 1..3 * chunk + 70 {
                let of_part = part(tokens, chunk);
                assert!((1..=chunk).contains(&of_part), "{tokens} by {chunk}");
                assert_eq!(tokens.div_ceil(of_part), tokens.div_ceil(chunk), "{tokens} by {chunk}");
            }
        }
        assert_eq!([3000, 2049, 2048].map(|tokens| part(tokens, 2048)), [1536, 1088, 2048]);
    }
}
