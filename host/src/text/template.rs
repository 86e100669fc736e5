//! Chat templates: messages to the one string that is then encoded.
//!
//! A template comes from the checkpoint, so it is code from a stranger. It runs in `minijinja`, which
//! reaches neither files nor the network, with [`FUEL`] instructions, a depth limit and at most
//! [`MAX_OUTPUT_BYTES`] of output, and sees nothing but the messages, the begin and end tokens and
//! the functions that published templates use (`raise_exception`, `strftime_now`, `tojson`, loop
//! controls, Python's string methods). Blocks are trimmed as in `transformers`. Not bounded is the
//! memory of a string that a template doubles again and again without writing it, nor the stack that
//! values take which a template puts into each other again and again.

use super::error::guarded;
use super::{TextError, Tokenizer};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// Instructions that one rendering may execute.
const FUEL: u64 = 1_000_000;
const MAX_DEPTH: usize = 64;
const MAX_TEMPLATE_BYTES: usize = 256 << 10;
/// Longest text that a template may write.
const MAX_OUTPUT_BYTES: usize = super::tokenizer::MAX_TEXT_BYTES;
/// Most words and signs of a tag, and most `elif` of a template: the engine follows chains of both by calls inside of
/// calls, and a stack that overflows ends the program.
const MAX_TAG: usize = 1000;
const MAX_ELIFS: usize = 200;
const NAME: &str = "chat_template";

/// The format that BitNet b1.58 2B-4T was trained on: the role with a capital, a colon, the trimmed
/// content and `<|eot_id|>`, without line breaks, then `Assistant: `.
pub const BITNET_TEMPLATE: &str = concat!(
    "{{ bos_token }}",
    "{% for message in messages %}",
    "{{ message.role | capitalize }}: {{ message.content | trim }}<|eot_id|>",
    "{% endfor %}",
    "{% if add_generation_prompt %}Assistant: {% endif %}",
);

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A turn of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// A compiled chat template with the begin and end tokens it may write.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    bos_token: String,
    eos_token: String,
    built_in: bool,
}

impl ChatTemplate {
    /// Compiles `source`.
    ///
    /// # Errors
    /// [`TextError::TooLarge`] above 256 KiB, [`TextError::Template`] with the line that does not
    /// compile.
    pub fn new(
        source: &str,
        bos_token: impl Into<String>,
        eos_token: impl Into<String>,
    ) -> Result<Self, TextError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(TextError::TooLarge {
                what: "the chat template".into(),
                found: source.len() as u64,
                allowed: MAX_TEMPLATE_BYTES as u64,
            });
        }
        let source = checked(source)?;
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|e| failure(&e))?);
        env.set_fuel(Some(FUEL));
        env.set_recursion_limit(MAX_DEPTH);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function("raise_exception", raise_exception);
        env.add_function("strftime_now", |format: &str| strftime(format, now()));
        env.add_filter("tojson", tojson);
        let compile = || env.add_template_owned(NAME, source).map_err(|e| failure(&e));
        guarded(compile, broken)?;
        Ok(Self { env, bos_token: bos_token.into(), eos_token: eos_token.into(), built_in: false })
    }

    /// The template of BitNet b1.58 2B-4T, [`BITNET_TEMPLATE`].
    ///
    /// # Errors
    /// None in practice: the source is fixed and tested.
    pub fn bitnet(tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let template = Self::new(BITNET_TEMPLATE, tokenizer.bos_token(), tokenizer.eos_token())?;
        Ok(Self { built_in: true, ..template })
    }

    /// The template in the contents of a `tokenizer_config.json`; `None` when it has none.
    ///
    /// Of several named templates the one named `default` is taken.
    ///
    /// # Errors
    /// As [`ChatTemplate::new`], and [`TextError::Json`] or [`TextError::Malformed`] for the file.
    pub fn from_tokenizer_config(data: &[u8]) -> Result<Option<Self>, TextError> {
        let what = || "tokenizer_config.json".to_owned();
        let config: serde_json::Value = serde_json::from_slice(data)
            .map_err(|source| TextError::Json { what: what(), source })?;
        let Some(source) = source_in(&config)? else { return Ok(None) };
        let token = |key| super::tokenizer::token_text(&config, key).unwrap_or_default();
        Self::new(&source, token("bos_token"), token("eos_token")).map(Some)
    }

    /// The template to use for a model of `architecture` (`model_type` of config.json, or
    /// `general.architecture` of a GGUF file).
    ///
    /// The one embedded in BitNet GGUF files is known to be wrong for the model, so there the
    /// built-in one is used instead. Otherwise the checkpoint's own wins, and the built-in one
    /// serves BitNet checkpoints without any whose vocabulary has `<|eot_id|>`.
    ///
    /// # Errors
    /// [`TextError::NoTemplate`] when there is neither; else as [`ChatTemplate::new`].
    pub fn for_model(tokenizer: &Tokenizer, architecture: &str) -> Result<Self, TextError> {
        let is_bitnet = architecture.starts_with("bitnet");
        match tokenizer.chat_template() {
            Some(source) if !(is_bitnet && tokenizer.is_from_gguf()) => {
                Self::new(source, tokenizer.bos_token(), tokenizer.eos_token())
            }
            // The turn ends with `<|eot_id|>`, so a vocabulary without it is another model's.
            _ if is_bitnet && tokenizer.id("<|eot_id|>").is_some() => Self::bitnet(tokenizer),
            _ => Err(TextError::NoTemplate { architecture: architecture.to_owned() }),
        }
    }

    /// Whether this is the built-in template and not the checkpoint's.
    pub fn is_built_in(&self) -> bool {
        self.built_in
    }

    /// Writes the conversation as one string, ending with the beginning of an assistant turn when
    /// `add_generation_prompt`.
    ///
    /// The string may start with the begin token; [`Tokenizer::encode`] does not add a second one.
    ///
    /// # Errors
    /// [`TextError::TemplateRefused`] in the template's own words, [`TextError::Template`] for every
    /// other failure, running out of fuel included.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, TextError> {
        let turns: Vec<Value> = messages
            .iter()
            .map(|m| Value::from_pairs([("role", &*m.role), ("content", &*m.content)]))
            .collect();
        let context = minijinja::context! {
            messages => turns,
            add_generation_prompt => add_generation_prompt,
            bos_token => self.bos_token.as_str(),
            eos_token => self.eos_token.as_str(),
        };
        let mut out = CappedText { bytes: Vec::new(), overrun: false };
        let template = self.env.get_template(NAME).map_err(|e| failure(&e))?;
        let write = || template.render_captured_to(context, &mut out).map(drop);
        let result = guarded(|| write().map_err(|e| failure(&e)), broken);
        if out.overrun {
            return Err(TextError::TooLarge {
                what: "the text written by the chat template".into(),
                found: MAX_OUTPUT_BYTES as u64 + 1,
                allowed: MAX_OUTPUT_BYTES as u64,
            });
        }
        result?;
        String::from_utf8(out.bytes)
            .map_err(|_| TextError::Template { reason: "its output is not UTF-8".into() })
    }
}

/// `chat_template` of a parsed `tokenizer_config.json`: a string, or a list of named ones.
pub(super) fn source_in(config: &serde_json::Value) -> Result<Option<String>, TextError> {
    let bad = |reason| Err(TextError::malformed("tokenizer_config.json", reason));
    let list = match config.get("chat_template") {
        None | Some(serde_json::Value::Null) => return Ok(None),
        Some(serde_json::Value::String(source)) => return Ok(Some(source.clone())),
        Some(serde_json::Value::Array(list)) => list,
        Some(_) => return bad("chat_template is neither a text nor a list"),
    };
    let default = list.iter().find(|t| t.get("name").and_then(|n| n.as_str()) == Some("default"));
    match default.and_then(|t| t.get("template")?.as_str()) {
        Some(source) => Ok(Some(source.to_owned())),
        None => bad("chat_template is a list without a template named default"),
    }
}

/// The template for the engine. What marks an answer for training (`generation`, which the engine does not know) is a block
/// without a condition.
///
/// Refuses what would make the engine call itself too deeply, and raw text, in which anything may look like a tag.
fn checked(source: &str) -> Result<String, TextError> {
    let refuse = |reason: String| Err(TextError::Template { reason });
    let bytes = source.as_bytes();
    let (mut at, mut elifs) = (0, 0);
    let (mut out, mut copied) = (String::with_capacity(source.len()), 0);
    while at + 1 < bytes.len() {
        let kind = bytes[at + 1];
        if bytes[at] != b'{' || !b"{%#".contains(&kind) {
            at += 1;
            continue;
        }
        at += 2;
        if kind == b'#' {
            at = source[at..].find("#}").map_or(bytes.len(), |end| at + end);
            continue;
        }
        if kind == b'%' {
            let sign = |c: char| c.is_whitespace() || "+-".contains(c);
            let inside = source[at..].trim_start_matches(sign);
            if inside.starts_with("raw") {
                return refuse("raw text is not supported; write it as a string".into());
            }
            elifs += usize::from(inside.starts_with("elif"));
            let name = inside.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next();
            let name = name.unwrap_or_default();
            let known = match name {
                "generation" => "if true",
                "endgeneration" => "endif",
                _ => name,
            };
            let begin = source.len() - inside.len();
            out.push_str(&source[copied..begin]);
            out.push_str(known);
            copied = begin + name.len();
        }
        let end: &[u8] = if kind == b'%' { b"%}" } else { b"}}" };
        let (mut parts, mut open, mut in_word) = (0, 0_i32, false);
        while at < bytes.len() && !(open == 0 && bytes[at..].starts_with(end)) {
            let byte = bytes[at];
            at += 1;
            match byte {
                b'(' | b'[' | b'{' => open += 1,
                b')' | b']' | b'}' => open -= 1,
                b'\'' | b'"' => {
                    while bytes.get(at).is_some_and(|&inside| inside != byte) {
                        at += if bytes[at] == b'\\' { 2 } else { 1 };
                    }
                    at += 1;
                }
                _ => {}
            }
            let word = byte.is_ascii_alphanumeric() || byte == b'_';
            let nothing_new = byte.is_ascii_whitespace() || word && in_word;
            parts += usize::from(!nothing_new);
            in_word = word;
        }
        if parts > MAX_TAG {
            return refuse(format!(
                "a tag of {parts} words and signs; at most {MAX_TAG} are taken"
            ));
        }
    }
    out.push_str(&source[copied..]);
    match elifs {
        0..=MAX_ELIFS => Ok(out),
        _ => refuse(format!("{elifs} times `elif`; at most {MAX_ELIFS} are taken")),
    }
}

/// A panic inside the engine.
fn broken(words: String) -> TextError {
    TextError::Template { reason: format!("the engine failed inside: {words}") }
}

/// Marks errors that `raise_exception` made.
const RAISED: &str = "raised by the template: ";

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
}

fn failure(error: &Error) -> TextError {
    if let Some(message) = error.detail().and_then(|d| d.strip_prefix(RAISED)) {
        return TextError::TemplateRefused { message: message.to_owned() };
    }
    let mut reason = error.kind().to_string();
    if let Some(detail) = error.detail() {
        reason += &format!(": {detail}");
    }
    if let Some(line) = error.line() {
        reason += &format!(" (line {line})");
    }
    TextError::Template { reason }
}

struct CappedText {
    bytes: Vec<u8>,
    overrun: bool,
}

impl std::io::Write for CappedText {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + data.len() > MAX_OUTPUT_BYTES {
            self.overrun = true;
            return Err(std::io::Error::other("the template writes too much"));
        }
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// JSON as Python's `json.dumps(ensure_ascii=False)` writes it: a space after `,` and `:`.
fn tojson(value: &Value, args: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = args.get("indent")?;
    for ignored in ["ensure_ascii", "sort_keys", "separators"] {
        let _: Option<Value> = args.get(ignored)?;
    }
    args.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        Some(width) => {
            let spaces = vec![b' '; width.min(16)];
            let pretty = serde_json::ser::PrettyFormatter::with_indent(&spaces);
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, pretty))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Spaced)),
    };
    let fail = |e: String| Error::new(ErrorKind::BadSerialization, e);
    written.map_err(|e| fail(e.to_string()))?;
    Ok(Value::from(String::from_utf8(out).map_err(|e| fail(e.to_string()))?))
}

struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

/// Seconds since 1970, UTC.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// `strftime` in UTC for the fields that chat templates use; another field is an error.
fn strftime(format: &str, seconds: u64) -> Result<String, Error> {
    let days = seconds / 86_400;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    // The Gregorian calendar repeats every 400 years of 146,097 days; years begin in March here, so
    // that the leap day is the last one.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[(days % 7) as usize]);

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out += &format!("{year:04}"),
            Some('m') => out += &format!("{month:02}"),
            Some('d') => out += &format!("{day:02}"),
            Some('B') => out += month_name,
            Some('b') => out += &month_name[..3],
            Some('A') => out += day_name,
            Some('a') => out += &day_name[..3],
            Some('H') => out += &format!("{hour:02}"),
            Some('M') => out += &format!("{minute:02}"),
            Some('S') => out += &format!("{second:02}"),
            Some('%') => out.push('%'),
            other => {
                let field = other.map_or(String::new(), String::from);
                let text = format!("strftime_now does not know %{field}");
                return Err(Error::new(ErrorKind::InvalidOperation, text));
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str) -> Vec<Message> {
        vec![Message::new("user", text)]
    }

    fn render(source: &str, messages: &[Message]) -> Result<String, TextError> {
        ChatTemplate::new(source, "<s>", "</s>")?.render(messages, true)
    }

    #[test]
    fn the_built_in_template_writes_the_published_example() {
        let template = ChatTemplate::new(BITNET_TEMPLATE, "<|begin_of_text|>", "").unwrap();
        assert_eq!(
            template.render(&user(" hi\n"), true).unwrap(),
            "<|begin_of_text|>User: hi<|eot_id|>Assistant: "
        );
        let talk = [
            Message::new("system", "Be short."),
            Message::new("user", "a"),
            Message::new("assistant", "b"),
        ];
        assert_eq!(
            template.render(&talk, false).unwrap(),
            "<|begin_of_text|>System: Be short.<|eot_id|>User: a<|eot_id|>Assistant: b<|eot_id|>"
        );
    }

    #[test]
    fn published_idioms_work() {
        let source = "{% set loop_messages = messages %}{% for m in loop_messages %}\n\
            {% set content = m['role'] | capitalize + ': ' + m['content'].strip() %}\
            {% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}\
            {{ content }}{% if not loop.last %}{% continue %}{% endif %}{% endfor %}\
            {%- if messages[0].get('tools') is none %}!{% endif %}{{ eos_token }}";
        assert_eq!(render(source, &user(" x ")).unwrap(), "<s>User: x!</s>");
        assert_eq!(
            render("{{ messages[0] | tojson }}", &user("é<\"")).unwrap(),
            r#"{"content": "é<\"", "role": "user"}"#
        );
        assert_eq!(render("{{ [1, 2] | tojson(indent=2) }}", &[]).unwrap(), "[\n  1,\n  2\n]");
    }

    /// Templates that mark the answers, for training: what is marked is written as it is.
    #[test]
    fn marks_of_answers_change_nothing() {
        let source = "{% for m in messages %}<{{ m.role }}>\n\
            {%- if m.role == 'assistant' -%}{%- generation -%} {{ m.content }}.{%endgeneration%}\
            {%- else %}{% set generation = ' {% generation %} ' %}{{ m.content + generation }}{% endif %}{% endfor %}";
        let talk = [Message::new("user", "a"), Message::new("assistant", "b")];
        assert_eq!(render(source, &talk).unwrap(), "<user>a {% generation %} <assistant>b.");
        for broken in ["{% generation %}", "{% endgeneration %}", "{% generations %}{% endif %}"] {
            assert!(matches!(render(broken, &talk), Err(TextError::Template { .. })), "{broken}");
        }
    }

    #[test]
    fn the_template_may_refuse() {
        match render("{{ raise_exception('roles must alternate') }}", &[]) {
            Err(TextError::TemplateRefused { message }) => {
                assert_eq!(message, "roles must alternate")
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn hostile_templates_end_in_an_error() {
        let endless =
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        let deep = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
        let syntax = "{% for %}";
        let include = "{% include '/etc/passwd' %}";
        let nested = "[".repeat(100_000);
        let nested = format!("{{{{ {nested} }}}}");
        for source in [endless, deep, syntax, include, &nested] {
            match render(source, &[]) {
                Err(TextError::Template { reason }) => assert!(!reason.is_empty()),
                other => panic!("{source:.40}: {other:?}"),
            }
        }
        let wide = "{% for a in range(2000) %}{{ 'x' * 20000 }}{% endfor %}";
        assert!(matches!(render(wide, &[]), Err(TextError::TooLarge { .. })));
        let long = " ".repeat(MAX_TEMPLATE_BYTES + 1);
        assert!(matches!(render(&long, &[]), Err(TextError::TooLarge { .. })));
    }

    /// Any of these ended the program: chains on the stack, and a panic of the engine.
    #[test]
    fn templates_that_break_the_engine_end_in_an_error() {
        let chain = |begin: &str, link: &str, end: &str| {
            let count = (MAX_TEMPLATE_BYTES - begin.len() - end.len()) / link.len();
            format!("{begin}{}{end}", link.repeat(count))
        };
        let sources = [
            chain("{{ ", "-", "1 }}"),
            chain("{{- ", "not ", "1 -}}"),
            chain("{{ messages", ".a", " }}"),
            chain("{{ messages", "()", " }}"),
            chain("{{ 'a }}\\'' ~ {'a': {}}", " + x", " }}"),
            chain("{% set x = '%}\"' %}{# '#}{% set x = x", " and x", " %}"),
            chain("{% if x %}", "{% elif x %}", "{% endif %}"),
            chain("{%- raw -%}{{ '{% endraw %}{{ 1", " + x", " + ' }}"),
            "{% for i in range(3) %}{{ loop.cycle() }}{% endfor %}".into(),
        ];
        for source in sources {
            match render(&source, &user("a")) {
                Err(TextError::Template { reason }) => assert!(!reason.is_empty()),
                other => panic!("{source:.40}: {other:?}"),
            }
        }
        // Tags that are long enough for anyone.
        let short = format!("{{{{ ''{} }}}}", " ~ 'a'".repeat(400)).repeat(9);
        assert_eq!(render(&short, &[]).unwrap(), "a".repeat(3600));
    }

    #[test]
    fn a_config_may_name_several_templates() {
        let config = br#"{"bos_token": {"content": "<b>"}, "chat_template": [
            {"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{bos_token}}y"}]}"#;
        let template = ChatTemplate::from_tokenizer_config(config).unwrap().unwrap();
        assert_eq!(template.render(&[], true).unwrap(), "<b>y");
        assert!(ChatTemplate::from_tokenizer_config(b"{}").unwrap().is_none());
        for bad in
            [&b"{"[..], b"{\"chat_template\": 3}", b"{\"chat_template\": [{\"name\": \"x\"}]}"]
        {
            assert!(ChatTemplate::from_tokenizer_config(bad).is_err());
        }
    }

    #[test]
    fn dates_are_gregorian() {
        let date = |seconds| strftime("%a %d %b %Y %H:%M:%S %A %B %m%%", seconds).unwrap();
        assert_eq!(date(0), "Thu 01 Jan 1970 00:00:00 Thursday January 01%");
        assert_eq!(date(951_782_399), "Mon 28 Feb 2000 23:59:59 Monday February 02%");
        assert_eq!(date(951_782_400), "Tue 29 Feb 2000 00:00:00 Tuesday February 02%");
        assert_eq!(date(4_107_542_399), "Sun 28 Feb 2100 23:59:59 Sunday February 02%");
        assert_eq!(date(4_107_542_400), "Mon 01 Mar 2100 00:00:00 Monday March 03%");
        assert!(strftime("%Q", 0).is_err());
    }
}
