//! What a text is asked for, in the form that devices take, and what is told of it.

use contract::sample::SampleParams;

use super::SessionError;
use crate::model::{Extras, TokenLogprobs};
use crate::text::{SamplingParams, TextError};

/// What a text is asked for.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) params: SampleParams,
    pub(super) extras: Extras,
}

impl Wish {
    /// By `params`, of a model with `vocab` tokens; `device` is the part of them that samplers read.
    ///
    /// # Errors
    /// A bias of a token that the model does not have.
    pub(super) fn new(
        params: &SamplingParams,
        device: SampleParams,
        vocab: usize,
    ) -> Result<Self, SessionError> {
        if let Some((id, _)) = params.logit_bias.iter().find(|(id, _)| *id as usize >= vocab) {
            let (name, found) = ("logit_bias", format!("token {id}"));
            let allowed = "ids of the model's tokens";
            return Err(TextError::Setting { name, found, allowed }.into());
        }
        let extras = Extras {
            logit_bias: params.logit_bias.clone(),
            logprobs: params.logprobs,
            prompt_logprobs: params.prompt_logprobs,
        };
        Ok(Self { params: device, extras })
    }
}

/// What is told of a token, if that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Told {
    pub(super) token: Option<TokenLogprobs>,
    /// With the first token of a text what is told of its prompt.
    pub(super) prompt: Vec<TokenLogprobs>,
}

impl Told {
    /// `None` where there is nothing.
    pub(super) fn new(token: Option<TokenLogprobs>, prompt: Vec<TokenLogprobs>) -> Option<Self> {
        (token.is_some() || !prompt.is_empty()).then_some(Self { token, prompt })
    }
}
