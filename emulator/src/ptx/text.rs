//! PTX text to statements: what `Program::parse` reads.

/// One operand as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand {
    /// A register, special register, label or variable.
    Name(String),
    /// A number; floats as their bits.
    Number(u64),
    /// `{a, b}`.
    List(Vec<Operand>),
    /// `[base + offset, rest...]`.
    Address(Box<Operand>, i64, Vec<Operand>),
}

/// One piece of a kernel's body.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item {
    /// `{`
    Open,
    /// `}`
    Close,
    /// `name:`
    Label(String),
    /// A directive such as `.reg .b32 %r<5>`, without its semicolon.
    Directive(String),
    /// `@guard opcode operands`, and the line it stands in.
    Instruction {
        guard: Option<(String, bool)>,
        opcode: String,
        operands: Vec<Operand>,
        text: String,
    },
}

/// `text` without comments.
pub(super) fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        out.push_str(line.split("//").next().unwrap_or(""));
        out.push('\n');
    }
    out
}

/// The items of a body (what stands between its outer braces).
pub(super) fn items(body: &str) -> Result<Vec<Item>, String> {
    let mut items = Vec::new();
    let mut rest = body.trim_start();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('{') {
            items.push(Item::Open);
            rest = after.trim_start();
            continue;
        }
        if let Some(after) = rest.strip_prefix('}') {
            items.push(Item::Close);
            rest = after.trim_start();
            continue;
        }
        let word = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
        if word > 0 && rest[word..].starts_with(':') && !rest[word..].starts_with("::") {
            items.push(Item::Label(rest[..word].to_owned()));
            rest = rest[word + 1..].trim_start();
            continue;
        }
        let end = rest.find(';').ok_or_else(|| format!("no semicolon after: {:.60}", rest))?;
        let statement = rest[..end].trim();
        rest = rest[end + 1..].trim_start();
        if statement.starts_with('.') {
            items.push(Item::Directive(statement.to_owned()));
        } else if !statement.is_empty() {
            items.push(instruction(statement)?);
        }
    }
    Ok(items)
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')
}

fn instruction(statement: &str) -> Result<Item, String> {
    let text = statement.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest = text.as_str();
    let mut guard = None;
    if let Some(after) = rest.strip_prefix('@') {
        let (name, after) =
            after.split_once(' ').ok_or_else(|| format!("no instruction: {text}"))?;
        guard = Some(match name.strip_prefix('!') {
            Some(name) => (name.to_owned(), true),
            None => (name.to_owned(), false),
        });
        rest = after;
    }
    let (opcode, operands) = rest.split_once(' ').unwrap_or((rest, ""));
    let operands = list(operands).map_err(|why| format!("{why}: {text}"))?;
    let opcode = opcode.to_owned();
    Ok(Item::Instruction { guard, opcode, operands, text })
}

/// Operands separated by commas outside of brackets.
fn list(text: &str) -> Result<Vec<Operand>, String> {
    let (mut depth, mut start) = (0_i32, 0);
    let mut out = Vec::new();
    for (at, c) in text.char_indices() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                out.push(operand(text[start..at].trim())?);
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = text[start..].trim();
    if !last.is_empty() {
        out.push(operand(last)?);
    }
    Ok(out)
}

fn operand(text: &str) -> Result<Operand, String> {
    if let Some(inner) = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
        return Ok(Operand::List(list(inner)?));
    }
    if let Some(inner) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        let (first, rest) = inner.split_once(',').unwrap_or((inner, ""));
        let (base, offset) = match first.trim().split_once('+') {
            Some((base, offset)) => {
                let Operand::Number(offset) = operand(offset.trim())? else {
                    return Err("an offset that is no number".into());
                };
                (base.trim(), offset as i64)
            }
            None => (first.trim(), 0),
        };
        return Ok(Operand::Address(Box::new(operand(base)?), offset, list(rest)?));
    }
    let first = text.chars().next().ok_or("an empty operand")?;
    if first.is_ascii_digit() || first == '-' {
        return number(text)
            .map(Operand::Number)
            .ok_or_else(|| format!("a number expected: {text}"));
    }
    Ok(Operand::Name(text.to_owned()))
}

fn number(text: &str) -> Option<u64> {
    if let Some(bits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0F")) {
        return u32::from_str_radix(bits, 16).ok().map(u64::from);
    }
    if let Some(bits) = text.strip_prefix("0d").or_else(|| text.strip_prefix("0D")) {
        return u64::from_str_radix(bits, 16).ok();
    }
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let digits = digits.trim_end_matches('U');
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    Some(if negative { value.wrapping_neg() } else { value })
}
