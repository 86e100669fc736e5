//! Random numbers of synthetic weights: a counter hashed by splitmix64, one stream per tensor row.

/// A stream of random numbers.
pub(super) struct Stream {
    state: u64,
    left: u64,
    pieces: u32,
}

impl Stream {
    /// The stream of row `row` of tensor `name`.
    pub(super) fn of(seed: u64, name: &str, row: usize) -> Self {
        // FNV-1a of the name, then two rounds of mixing so that neighbouring rows are unrelated.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        });
        let state = mix(mix(seed ^ hash).wrapping_add(row as u64));
        Self { state, left: 0, pieces: 0 }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Uniform in -1 to 1, in steps of 2^-15: every value is exact in f32.
    pub(super) fn symmetric(&mut self) -> f32 {
        if self.pieces == 0 {
            self.left = self.next();
            self.pieces = 4;
        }
        let value = self.left as u16 as i16;
        self.left >>= 16;
        self.pieces -= 1;
        f32::from(value) / 32768.0
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Four codes (0, 1 or 2 each) from one random byte: its four lowest base-3 digits.
const CODES: [u8; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let v = i as u8 % 81;
        table[i] = (v % 3) | ((v / 3 % 3) << 2) | ((v / 9 % 3) << 4) | ((v / 27) << 6);
        i += 1;
    }
    table
};

/// One packed byte row of a projection.
pub(super) fn byte_row(seed: u64, name: &str, row: usize, out: &mut [u8]) {
    let mut stream = Stream::of(seed, name, row);
    for piece in out.chunks_mut(8) {
        for (byte, random) in piece.iter_mut().zip(stream.next().to_le_bytes()) {
            *byte = CODES[random as usize];
        }
    }
}
