//! Options, copies, memory and the token log of the CPU backend.

use super::*;

#[test]
fn odd_options_are_refused_with_what_is_allowed() {
    for asked in [0, MAX_THREADS + 1] {
        let refused = CpuBackend::new(Some(asked)).err().map(|e| e.to_string());
        let refused = refused.expect("refused");
        assert!(refused.contains(&asked.to_string()) && refused.contains("1024"), "{refused}");
    }
}

#[test]
fn copies_outside_of_a_buffer_are_refused() {
    let backend = CpuBackend::new(Some(1)).expect("a backend");
    let mut buffer = backend.alloc::<u32>("test", 4).expect("memory");
    assert!(backend.write(&mut buffer, 3, &[1, 2]).is_err());
    assert!(backend.write(&mut buffer, usize::MAX, &[1]).is_err());
    assert!(backend.write(&mut buffer, 2, &[1, 2]).is_ok());
    let mut out = [0; 3];
    assert!(backend.read(&buffer, 2, &mut out).is_err());
    assert!(backend.read(&buffer, 1, &mut out).is_ok());
    assert_eq!(out, [0, 1, 2]);
    for (from, to, len) in [(3, 0, 2), (0, 3, 2), (usize::MAX, 0, 1), (0, usize::MAX, 1)] {
        let refused = backend.copy_within(&mut buffer, from, to, len);
        assert!(matches!(refused, Err(OpError::Range { op: "copy_within", .. })));
    }
    let refused = backend.copy_within(&mut buffer, 1, 0, 2);
    assert!(matches!(refused, Err(OpError::Overlap { from: 1, to: 0, count: 2, .. })));
    assert!(backend.copy_within(&mut buffer, 2, 0, 2).is_ok());
    assert!(backend.copy_within(&mut buffer, 4, 4, 0).is_ok());
    assert_eq!(buffer.as_slice(), [1, 2, 1, 2]);
}

#[test]
fn memory_is_counted_by_label_while_it_lives() {
    let backend = CpuBackend::new(Some(1)).expect("a backend");
    let weights = backend.alloc::<u32>("weights", 100).expect("memory");
    let cache = backend.alloc::<u8>("kv cache", 50).expect("memory");
    drop(cache);
    let usage = backend.memory();
    assert_eq!((usage.in_use_bytes, usage.peak_bytes), (400, 450));
    assert_eq!(usage.largest(1), [("weights", 400)]);
    drop(weights);
    assert_eq!(backend.memory().in_use_bytes, 0);
}

#[test]
fn tokens_start_empty_and_are_cleared() {
    let backend = CpuBackend::new(Some(1)).expect("a backend");
    let mut tokens = backend.alloc_tokens(3).expect("memory");
    assert_eq!((tokens.len(), tokens.get(0), tokens.get(9)), (3, u32::MAX, u32::MAX));
    tokens.0[1] = 5;
    assert_eq!(tokens.get(1), 5);
    tokens.clear();
    assert_eq!(tokens.get(1), CpuTokens::EMPTY);
}
