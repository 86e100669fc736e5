//! Log probabilities as the API tells them.

use bitnet_gpu::session::TokenLogprobs;
use bitnet_gpu::text::Tokenizer;
use serde_json::{Map, Value, json};

/// What stands for minus infinity, which JSON does not have: as OpenAI and vLLM say it.
const LEAST: f32 = -9999.0;

/// A token and its log probability.
#[derive(Clone, Debug)]
struct Likely {
    bytes: Vec<u8>,
    logprob: f32,
}

impl Likely {
    fn new(tokenizer: Option<&Tokenizer>, id: u32, logprob: f32) -> Self {
        let bytes = tokenizer.and_then(|tokenizer| tokenizer.token_bytes(id));
        // Of a model without a tokenizer, or an id that has no text: as vLLM writes ids.
        let bytes = bytes.map_or_else(|| format!("token_id:{id}").into_bytes(), <[u8]>::to_vec);
        Self { bytes, logprob: logprob.max(LEAST) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// As conversations have it.
    fn document(&self) -> Value {
        json!({"token": self.text(), "logprob": self.logprob, "bytes": self.bytes})
    }
}

/// What is told of a token.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    token: Likely,
    /// Of the first token of a prompt there is none.
    known: bool,
    top: Vec<Likely>,
}

impl Entry {
    pub(crate) fn new(
        tokenizer: Option<&Tokenizer>,
        id: u32,
        told: Option<&TokenLogprobs>,
    ) -> Self {
        let top = told.iter().flat_map(|told| &told.top);
        Self {
            token: Likely::new(tokenizer, id, told.map_or(0.0, |told| told.logprob)),
            known: told.is_some(),
            top: top.map(|&(id, logprob)| Likely::new(tokenizer, id, logprob)).collect(),
        }
    }

    /// Characters of its token.
    pub(crate) fn chars(&self) -> usize {
        self.token.text().chars().count()
    }
}

/// The entries of a choice, or of an event of it, in the form of `/v1/chat/completions` or `/v1/completions`. Tokens of the latter stand from the character `offset` on.
pub(crate) fn document(entries: &[Entry], chat: bool, offset: usize) -> Value {
    if chat {
        let content = entries.iter().map(|entry| {
            let mut document = entry.token.document();
            document["top_logprobs"] = entry.top.iter().map(Likely::document).collect();
            document
        });
        return json!({"content": content.collect::<Vec<_>>(), "refusal": null});
    }
    let mut at = offset;
    let offsets = entries.iter().map(|entry| {
        let own = at;
        at += entry.chars();
        own
    });
    let offsets: Vec<usize> = offsets.collect();
    let known = |entry: &Entry, value: Value| if entry.known { value } else { Value::Null };
    json!({
        "tokens": entries.iter().map(|entry| entry.token.text()).collect::<Vec<_>>(),
        "token_logprobs": entries.iter().map(|entry| known(entry, json!(entry.token.logprob))).collect::<Vec<_>>(),
        "top_logprobs": entries.iter().map(|entry| known(entry, top(entry))).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

/// The most likely tokens by their texts, and the token itself; of those with the same text the likeliest.
fn top(entry: &Entry) -> Value {
    let mut all = Map::new();
    for likely in entry.top.iter().chain([&entry.token]) {
        all.entry(likely.text()).or_insert_with(|| json!(likely.logprob));
    }
    Value::Object(all)
}
