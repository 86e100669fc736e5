//! Text in and out: tokenizer, chat template, streaming decoder, stop strings, sampling parameters.
//!
//! ```text
//! messages -> ChatTemplate -> text -> Tokenizer::encode -> ids -> (model) -> ids
//!          -> TextStream (whole characters only) -> StopMatcher (holds back possible stops) -> text
//! ```
//!
//! Every file read here is treated as hostile: sizes are capped before reading, the contents are
//! checked before they reach the `tokenizers` crate, and templates run with fuel, depth and output
//! limits. Nothing is fetched from a network.

mod bytes;
mod error;
mod gguf;
mod grammar;
mod sampler;
mod stop;
mod stream;
mod template;
#[cfg(test)]
mod tests;
mod tokenizer;
mod vet;

pub use error::TextError;
pub use grammar::{Constraint, Grammar, GrammarCompiler, MAX_GRAMMAR_BYTES};
pub use sampler::{
    MAX_BIASES, MAX_LOGPROBS, MAX_STOP_BYTES, MAX_STOPS, MAX_TOKENS, SamplingParams,
};
pub use stop::{StopMatcher, StopStep};
pub use stream::TextStream;
pub use template::{BITNET_TEMPLATE, ChatTemplate, Message};
pub use tokenizer::{Tokenizer, TokenizerFiles};
