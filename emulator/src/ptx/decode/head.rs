//! What stands in front of a body.

use std::collections::HashMap;

/// Most bytes of all parameters.
const MOST: usize = 32764;

/// Parameters of an entry.
pub(super) struct Parameters {
    /// Offset and bytes of each.
    pub(super) places: Vec<(usize, usize)>,
    /// Bytes of all.
    pub(super) bytes: usize,
    /// Offsets by name.
    pub(super) offsets: HashMap<String, usize>,
}

/// What stands between the first parentheses.
pub(super) fn parameters(head: &str) -> Result<Parameters, String> {
    let inner = head.split_once('(').and_then(|(_, rest)| rest.split_once(')')).map_or("", |p| p.0);
    let mut all = Parameters { places: Vec::new(), bytes: 0, offsets: HashMap::new() };
    for param in inner.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let wrong = || format!("parameter {param}");
        let (mut align, mut unit, mut name) = (None, 0, "");
        let mut words = param.split_whitespace();
        while let Some(word) = words.next() {
            match word {
                ".param" => {}
                ".align" => {
                    let number = words.next().and_then(|n| n.parse::<usize>().ok());
                    align = Some(number.filter(|n| n.is_power_of_two()).ok_or_else(wrong)?);
                }
                ".b8" | ".u8" => unit = 1,
                ".b16" | ".u16" => unit = 2,
                ".b32" | ".u32" | ".f32" => unit = 4,
                ".b64" | ".u64" => unit = 8,
                other if other.starts_with('.') => return Err(wrong()),
                other => name = other,
            }
        }
        let (name, count) = match name.split_once('[') {
            Some((name, count)) => {
                (name, count.trim_end_matches(']').parse::<usize>().map_err(|_| wrong())?)
            }
            None => (name, 1),
        };
        if unit == 0 || name.is_empty() || count > MOST || align > Some(MOST) {
            return Err(wrong());
        }
        let offset = all.bytes.next_multiple_of(align.unwrap_or(unit));
        all.bytes = offset + unit * count;
        if all.bytes > MOST {
            return Err(format!("more than {MOST} bytes of parameters"));
        }
        all.places.push((offset, unit * count));
        all.offsets.insert(name.to_owned(), offset);
    }
    Ok(all)
}

/// The numbers of a directive such as `.reqntid 128, 1, 1`; 1 for those that are not given.
pub(super) fn triple(head: &str, directive: &str) -> Result<Option<[u32; 3]>, String> {
    let Some((_, rest)) = head.split_once(directive) else { return Ok(None) };
    let numbers = rest.split(['.', '\n']).next().unwrap_or("");
    let mut out = [1; 3];
    for (place, number) in out.iter_mut().zip(numbers.split(',')) {
        *place = number.trim().parse().map_err(|_| format!("{directive}{numbers}"))?;
    }
    Ok(Some(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_laid_out_as_a_c_structure() {
        let head = "k(.param .u32 a, .param .align 8 .b8 b[12],\n .param .u64 c) .reqntid 32";
        let all = parameters(head).expect("good");
        assert_eq!((all.places, all.bytes), (vec![(0, 4), (8, 12), (24, 8)], 32));
        assert_eq!(all.offsets["b"], 8);
        for bad in [".f64 x", ".align 3 .b8 x[1]", ".b8 x[99999]", ".u32", ".b8 x[y]"] {
            assert!(parameters(&format!("k(.param {bad})")).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_triple_ends_with_its_line_or_the_next_directive() {
        let head = "k() .reqntid 64, 2 .reqnctapercluster 2\n.maxnreg 3";
        assert_eq!(triple(head, ".reqntid "), Ok(Some([64, 2, 1])));
        assert_eq!(triple(head, ".reqnctapercluster "), Ok(Some([2, 1, 1])));
        assert_eq!(triple(head, ".minnctapersm "), Ok(None));
        assert!(triple("k() .reqntid x", ".reqntid ").is_err());
    }
}
