//! Why a request is refused, as the OpenAI API says it.

use hyper::StatusCode;
use serde_json::{Value, json};

/// A status, and words for people.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) words: String,
    /// The field at fault.
    pub(crate) param: Option<String>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, words: impl Into<String>) -> Self {
        Self { status, words: words.into(), param: None }
    }

    /// A request that cannot be served as it is.
    pub(crate) fn bad(words: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, words)
    }

    /// The same, because of one field.
    pub(crate) fn field(name: &str, words: impl Into<String>) -> Self {
        Self { param: Some(name.to_owned()), ..Self::bad(words) }
    }

    /// A server that has no room now.
    pub(crate) fn busy(words: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, words)
    }

    /// A failure that is not the client's.
    pub(crate) fn failed(words: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, words)
    }

    pub(crate) fn document(&self) -> Value {
        let kind = match self.status.is_client_error() {
            true => "invalid_request_error",
            false => "server_error",
        };
        let (message, param) = (&self.words, &self.param);
        json!({"error": {"message": message, "type": kind, "param": param, "code": self.status.as_u16()}})
    }
}
