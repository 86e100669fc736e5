//! Requests and answers of the OpenAI API.
//!
//! A field is taken out of the document by its name; what is left over is refused, unless its value asks for nothing.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use bitnet_gpu::session::Finish;
use bitnet_gpu::text::{Grammar, Message, SamplingParams, TextError};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::Settings;
use crate::logprobs::{self, Entry};
use crate::reply::Refusal;

/// Most prompts of one request, most of its choices, and most of its stop strings.
const PROMPTS_MOST: usize = 64;
const CHOICES_MOST: usize = 128;
const STOPS_MOST: usize = 16;

/// Whether a value asks for nothing.
type Neutral = fn(&Value) -> bool;

/// Fields that are fine with values that ask for nothing, or for nothing that changes a text.
const NEUTRAL: &[(&str, Neutral)] = &[
    ("best_of", |v| v == 1),
    ("echo", |v| v == false),
    ("suffix", |v| v == ""),
    ("tools", |v| v == &json!([])),
    ("functions", |v| v == &json!([])),
    ("tool_choice", |v| v == "none"),
    ("store", |v| v == false),
    ("user", Value::is_string),
    ("metadata", Value::is_object),
    ("service_tier", Value::is_string),
    ("parallel_tool_calls", Value::is_boolean),
];

/// What a text begins with.
#[derive(Clone, Debug)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Chat(Vec<Message>),
}

/// A request, checked but for what the model knows.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) prompts: Vec<Prompt>,
    /// Choices of each.
    pub(crate) n: usize,
    pub(crate) params: SamplingParams,
    /// Whether choices begin with their prompts.
    pub(crate) echo: bool,
    /// Whether they end with them: a text of no tokens.
    pub(crate) nothing: bool,
    /// What an answer may hold, as the client thinks.
    pub(crate) prediction: Option<String>,
    pub(crate) stream: bool,
    /// Whether a stream ends with the numbers of tokens.
    pub(crate) usage: bool,
    pub(crate) chat: bool,
}

/// The fields that are left of a document.
struct Fields(Map<String, Value>);

impl Fields {
    /// The field of this name; null is none.
    fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Refusal> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value)
                .map(Some)
                .map_err(|error| Refusal::field(name, format!("{name}: {error}"))),
        }
    }

    /// The same into a setting, which stays as it is where there is none.
    fn set<T: DeserializeOwned>(&mut self, name: &str, to: &mut T) -> Result<(), Refusal> {
        if let Some(value) = self.take(name)? {
            *to = value;
        }
        Ok(())
    }

    /// Refuses what nobody took.
    fn end(self) -> Result<(), Refusal> {
        for (name, value) in self.0 {
            let fine = NEUTRAL.iter().any(|(known, neutral)| *known == name && neutral(&value));
            if !value.is_null() && !fine {
                let shown = value.to_string().chars().take(60).collect::<String>();
                let words =
                    format!("{name} = {shown} is not supported by this server; leave it out");
                return Err(Refusal::field(&name, words));
            }
        }
        Ok(())
    }
}

/// One or several of something.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

impl<T> OneOrMore<T> {
    fn all(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::More(all) => all,
        }
    }
}

/// The prompts of a completion: texts or ids, one or several.
#[derive(serde::Deserialize)]
#[serde(untagged, expecting = "a text, ids, or a list of either")]
enum Prompts {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    All(Vec<Vec<u32>>),
}

/// What an answer may hold.
#[derive(serde::Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Prediction {
    Content { content: Content },
}

/// What an answer has to be, as OpenAI says it.
#[derive(serde::Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponseFormat {
    Text,
    JsonObject,
    JsonSchema { json_schema: NamedSchema },
}

#[derive(serde::Deserialize)]
struct NamedSchema {
    schema: Option<Value>,
}

/// The same as vLLM says it: one of these.
#[derive(serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum StructuredOutputs {
    Json(Value),
    JsonObject(bool),
    Regex(String),
    Choice(Vec<String>),
    Grammar(String),
}

/// A message as clients send it.
#[derive(serde::Deserialize)]
struct Said {
    role: String,
    content: Content,
}

#[derive(serde::Deserialize)]
#[serde(untagged, expecting = "a text, or parts of type text")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

impl Content {
    fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Parts(parts) => parts.into_iter().map(|Part::Text { text }| text).collect(),
        }
    }
}

#[derive(serde::Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part {
    Text { text: String },
}

#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

impl Asked {
    /// Reads a request for completions, or for an answer in a conversation.
    pub(crate) fn read(body: &[u8], chat: bool, settings: &Settings) -> Result<Self, Refusal> {
        let Settings { model, defaults, .. } = settings;
        let document: Map<String, Value> = serde_json::from_slice(body)
            .map_err(|error| Refusal::bad(format!("the body is no JSON document: {error}")))?;
        let mut fields = Fields(document);
        if let Some(asked) = fields.take::<String>("model")?.filter(|asked| asked != model) {
            let words = format!("there is no model {asked:?}; this server has {model:?}");
            let status = hyper::StatusCode::NOT_FOUND;
            return Err(Refusal { status, ..Refusal::field("model", words) });
        }
        let prompts = if chat { messages(&mut fields)? } else { prompts(&mut fields)? };
        let seed = settings.seed.unwrap_or_else(drawn);
        let mut params = SamplingParams { seed, ..defaults.clone() };
        fields.set("max_tokens", &mut params.max_tokens)?;
        if chat {
            fields.set("max_completion_tokens", &mut params.max_tokens)?;
        }
        let n = fields.take("n")?.unwrap_or(1);
        if !(1..=CHOICES_MOST).contains(&n) || n * prompts.len() > CHOICES_MOST {
            let words = format!(
                "n = {n}; at least 1, and {CHOICES_MOST} choices of all prompts are allowed"
            );
            return Err(Refusal::field("n", words));
        }
        let echo = !chat && fields.take("echo")?.unwrap_or(false);
        let nothing = echo && params.max_tokens == 0;
        // What a text of no tokens is told of its prompt comes with a token that nobody asked for.
        params.max_tokens += usize::from(nothing);
        let prediction = if chat { fields.take("prediction")? } else { None };
        let prediction = prediction.map(|Prediction::Content { content }| content.text());
        fields.set("temperature", &mut params.temperature)?;
        fields.set("top_p", &mut params.top_p)?;
        fields.set("top_k", &mut params.top_k)?;
        fields.set("min_p", &mut params.min_p)?;
        fields.set("repetition_penalty", &mut params.repetition_penalty)?;
        fields.set("presence_penalty", &mut params.presence_penalty)?;
        fields.set("frequency_penalty", &mut params.frequency_penalty)?;
        params.logit_bias = biases(&mut fields)?;
        params.logprobs = logprobs_asked(&mut fields, chat)?;
        params.prompt_logprobs = params.logprobs.filter(|_| echo);
        fields.set("seed", &mut params.seed)?;
        fields.set("ignore_eos", &mut params.ignore_eos)?;
        if let Some(stop) = fields.take::<OneOrMore<String>>("stop")? {
            params.stop = stop.all();
            if params.stop.len() > STOPS_MOST {
                let words = format!("{} stop texts; {STOPS_MOST} are allowed", params.stop.len());
                return Err(Refusal::field("stop", words));
            }
        }
        grammar(&mut fields, &mut params)?;
        let stream = fields.take("stream")?.unwrap_or(false);
        let options = fields.take::<StreamOptions>("stream_options")?;
        if echo && stream {
            return Err(Refusal::field("echo", "echo goes without stream"));
        }
        if options.is_some() && !stream {
            return Err(Refusal::field("stream_options", "stream_options go with stream = true"));
        }
        fields.end()?;
        params.validate().map_err(|error| match error {
            TextError::Setting { name, .. } => Refusal::field(name, error.to_string()),
            _ => Refusal::bad(error.to_string()),
        })?;
        let usage = options.unwrap_or_default().include_usage;
        Ok(Self { prompts, n, params, echo, nothing, prediction, stream, usage, chat })
    }
}

fn prompts(fields: &mut Fields) -> Result<Vec<Prompt>, Refusal> {
    let asked = fields.take::<Prompts>("prompt")?;
    let asked = asked.ok_or_else(|| Refusal::field("prompt", "a prompt is missing"))?;
    let prompts: Vec<Prompt> = match asked {
        Prompts::Text(text) => vec![Prompt::Text(text)],
        Prompts::Ids(ids) if ids.is_empty() => Vec::new(),
        Prompts::Ids(ids) => vec![Prompt::Ids(ids)],
        Prompts::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
        Prompts::All(all) => all.into_iter().map(Prompt::Ids).collect(),
    };
    if !(1..=PROMPTS_MOST).contains(&prompts.len()) {
        let words = format!("{} prompts; 1 to {PROMPTS_MOST} are allowed", prompts.len());
        return Err(Refusal::field("prompt", words));
    }
    Ok(prompts)
}

/// Takes what is added to logits: of each id, as a text.
fn biases(fields: &mut Fields) -> Result<Vec<(u32, f32)>, Refusal> {
    let asked = fields.take::<BTreeMap<String, f32>>("logit_bias")?.unwrap_or_default();
    let bias = |(id, bias): (String, f32)| {
        let id = id.parse().map_err(|_| {
            Refusal::field("logit_bias", format!("logit_bias: {id:?} is no id of a token"))
        })?;
        Ok((id, bias))
    };
    asked.into_iter().map(bias).collect()
}

/// Takes how many of the most likely tokens are told at each place, if any are.
fn logprobs_asked(fields: &mut Fields, chat: bool) -> Result<Option<u32>, Refusal> {
    if !chat {
        // Some clients say false.
        return Ok(match fields.take::<NumberOrNot>("logprobs")? {
            Some(NumberOrNot::Number(top)) => Some(top),
            Some(NumberOrNot::Not(true)) => Some(0),
            Some(NumberOrNot::Not(false)) | None => None,
        });
    }
    let logprobs = fields.take("logprobs")?.unwrap_or(false);
    let top = fields.take::<u32>("top_logprobs")?;
    if top.is_some_and(|top| top > 0) && !logprobs {
        return Err(Refusal::field("top_logprobs", "top_logprobs go with logprobs = true"));
    }
    Ok(logprobs.then(|| top.unwrap_or(0)))
}

#[derive(serde::Deserialize)]
#[serde(untagged, expecting = "a number of tokens")]
enum NumberOrNot {
    Number(u32),
    Not(bool),
}

fn messages(fields: &mut Fields) -> Result<Vec<Prompt>, Refusal> {
    let said = fields.take::<Vec<Said>>("messages")?.unwrap_or_default();
    if said.is_empty() {
        return Err(Refusal::field("messages", "messages are missing"));
    }
    let messages =
        said.into_iter().map(|Said { role, content }| Message::new(role, content.text()));
    Ok(vec![Prompt::Chat(messages.collect())])
}

/// Takes what an answer has to be, where a request says it.
fn grammar(fields: &mut Fields, params: &mut SamplingParams) -> Result<(), Refusal> {
    let format = fields.take::<ResponseFormat>("response_format")?;
    let structured = fields.take::<StructuredOutputs>("structured_outputs")?;
    if format.is_some() && structured.is_some() {
        let words = "response_format and structured_outputs say the same; give one";
        return Err(Refusal::field("structured_outputs", words));
    }
    match format {
        None => {}
        Some(ResponseFormat::Text) => params.grammar = None,
        Some(ResponseFormat::JsonSchema { json_schema: NamedSchema { schema: Some(schema) } }) => {
            params.grammar = Some(Grammar::JsonSchema(schema));
        }
        Some(_) => params.grammar = Some(Grammar::json_object()),
    }
    params.grammar = match structured {
        None => return Ok(()),
        // As a text or as a document.
        Some(StructuredOutputs::Json(Value::String(schema))) => {
            let schema = serde_json::from_str(&schema).map_err(|error| {
                Refusal::field("structured_outputs", format!("structured_outputs.json: {error}"))
            })?;
            Some(Grammar::JsonSchema(schema))
        }
        Some(StructuredOutputs::Json(schema)) => Some(Grammar::JsonSchema(schema)),
        Some(StructuredOutputs::JsonObject(object)) => object.then(Grammar::json_object),
        Some(StructuredOutputs::Regex(regex)) => Some(Grammar::Regex(regex)),
        Some(StructuredOutputs::Choice(texts)) => {
            let choice = Grammar::choice(&texts);
            Some(choice.map_err(|e| Refusal::field("structured_outputs", e.to_string()))?)
        }
        Some(StructuredOutputs::Grammar(grammar)) => Some(Grammar::Lark(grammar)),
    };
    Ok(())
}

/// A seed for a request without one.
fn drawn() -> u64 {
    RandomState::new().hash_one(0)
}

/// Why a text ended, in the API's words.
pub(crate) fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::MaxTokens | Finish::ContextFull | Finish::GrammarLimit => "length",
        Finish::StopToken | Finish::StopString | Finish::Cancelled | Finish::Grammar => "stop",
    }
}

/// Tokens of a request, all of its choices together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    /// Of the prompt.
    pub(crate) cached: usize,
    pub(crate) generated: usize,
    /// Guesses that were right, of those generated, and all.
    pub(crate) accepted: usize,
    pub(crate) drafted: usize,
}

impl Usage {
    pub(crate) fn add(&mut self, Self { prompt, cached, generated, accepted, drafted }: Self) {
        self.prompt += prompt;
        self.cached += cached;
        self.generated += generated;
        self.accepted += accepted;
        self.drafted += drafted;
    }

    fn document(self) -> Value {
        let Self { prompt, cached, generated, accepted, drafted } = self;
        json!({
            "prompt_tokens": prompt,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens": generated,
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            },
            "total_tokens": prompt + generated,
        })
    }
}

/// What all documents of one answer have in common.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) chat: bool,
}

impl Answer {
    fn document(&self, stream: bool, choices: Value, usage: Option<Value>) -> Value {
        let object = match (self.chat, stream) {
            (false, _) => "text_completion",
            (true, false) => "chat.completion",
            (true, true) => "chat.completion.chunk",
        };
        let mut document = json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
        });
        if let Some(usage) = usage {
            document["usage"] = usage;
        }
        document
    }

    /// The log probabilities of a choice or of an event of it, null where there are none.
    fn told(&self, entries: Option<&[Entry]>, offset: usize) -> Value {
        entries.map_or(Value::Null, |entries| logprobs::document(entries, self.chat, offset))
    }

    /// The whole answer: of each choice its text, what is told of it, and why it ended.
    pub(crate) fn whole(
        &self,
        choices: Vec<(String, Option<Vec<Entry>>, &str)>,
        usage: Usage,
    ) -> Value {
        let choices = choices.into_iter().enumerate().map(|(index, (text, entries, finish))| {
            let told = self.told(entries.as_deref(), 0);
            match self.chat {
                true => json!({
                    "index": index, "message": {"role": "assistant", "content": text}, "logprobs": told, "finish_reason": finish,
                }),
                false => json!({"index": index, "text": text, "logprobs": told, "finish_reason": finish}),
            }
        });
        self.document(false, choices.collect(), Some(usage.document()))
    }

    /// The first event of a choice in a conversation.
    pub(crate) fn role(&self, index: usize) -> Value {
        let choice = json!({"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": null});
        self.document(true, json!([choice]), None)
    }

    /// An event: more text of a choice, what is told of its token, which stands behind so many characters, and why the text ended if it did.
    pub(crate) fn piece(
        &self,
        index: usize,
        text: &str,
        (entry, offset): (Option<&Entry>, usize),
        finish: Option<&str>,
    ) -> Value {
        let told = self.told(entry.map(std::slice::from_ref), offset);
        let choice = match self.chat {
            true => {
                let delta = if text.is_empty() { json!({}) } else { json!({"content": text}) };
                json!({"index": index, "delta": delta, "logprobs": told, "finish_reason": finish})
            }
            false => {
                json!({"index": index, "text": text, "logprobs": told, "finish_reason": finish})
            }
        };
        self.document(true, json!([choice]), None)
    }

    /// The last event: the numbers of tokens.
    pub(crate) fn usage(&self, usage: Usage) -> Value {
        self.document(true, json!([]), Some(usage.document()))
    }
}

#[cfg(test)]
mod tests;
