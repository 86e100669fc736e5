//! Rust source with comments, strings and character literals blanked out, line by line: rules
//! about code must not trip over words in prose.

/// `text` with everything that is not code replaced by spaces. Line breaks stay where they are.
pub(super) fn only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        let end = match chars[i] {
            '/' if chars.get(i + 1) == Some(&'/') => until(&chars, i, |c| c == '\n'),
            '/' if chars.get(i + 1) == Some(&'*') => block_comment(&chars, i),
            '"' => string(&chars, i),
            'r' | 'b' | 'c' if !follows_word(&chars, i) => raw_string(&chars, i).unwrap_or(i),
            '\'' => character(&chars, i).unwrap_or(i),
            _ => i,
        };
        if end == i {
            out.push(chars[i]);
            i += 1;
        } else {
            out.extend(chars[i..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            i = end;
        }
    }
    out
}

fn until(chars: &[char], from: usize, stop: impl Fn(char) -> bool) -> usize {
    chars[from..].iter().position(|&c| stop(c)).map_or(chars.len(), |n| from + n)
}

fn follows_word(chars: &[char], i: usize) -> bool {
    i > 0 && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_')
}

fn block_comment(chars: &[char], start: usize) -> usize {
    let (mut depth, mut i) = (0, start);
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                i += 1;
                continue;
            }
        }
        i += 2;
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

fn string(chars: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// The end of `r".."`, `br#".."#` and the like, if one starts here.
fn raw_string(chars: &[char], start: usize) -> Option<usize> {
    let mut i = start;
    while matches!(chars.get(i), Some('b' | 'c')) {
        i += 1;
    }
    if chars.get(i) != Some(&'r') {
        return None;
    }
    let hashes = chars[i + 1..].iter().take_while(|&&c| c == '#').count();
    i += 1 + hashes;
    if chars.get(i) != Some(&'"') {
        return None;
    }
    i += 1;
    loop {
        i += chars.get(i..)?.iter().position(|&c| c == '"')? + 1;
        if chars.get(i..i + hashes)?.iter().all(|&c| c == '#') {
            return Some(i + hashes);
        }
    }
}

/// The end of a character literal, if this is not a lifetime.
fn character(chars: &[char], start: usize) -> Option<usize> {
    match chars.get(start + 1)? {
        '\\' => Some(until(chars, start + 3, |c| c == '\'') + 1),
        _ => (chars.get(start + 2) == Some(&'\'')).then_some(start + 3),
    }
}

#[cfg(test)]
mod tests {
    use super::only;

    #[test]
    fn blanks_what_is_not_code() {
        assert_eq!(only("a // b\nc"), "a     \nc");
        assert_eq!(only("a /* b /* c */ d */ e"), format!("a{}e", " ".repeat(19)));
        assert_eq!(only(r#"f("x \" y", z)"#), "f(        , z)");
        assert_eq!(only("f(r#\"x \" y\"#, z)"), "f(          , z)");
        assert_eq!(only("for<'a> b'x' == '\\'' && '\"'"), "for<'a> b    ==      &&    ");
        assert_eq!(only("crab\"s\""), "crab   ");
        assert_eq!(only("\"a\nb\"c"), "  \n  c");
    }

    #[test]
    fn an_open_string_ends_with_the_file() {
        assert_eq!(only("x \"y"), "x   ");
        assert_eq!(only("r\"y"), "r  ");
    }
}
