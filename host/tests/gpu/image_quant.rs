//! [`contract::image_quant`]: every type, and a convolution of what it gives.

use bitnet_gpu::ops::Backend;
use bitnet_gpu::ops::image_quant::ImageQuant;
use bitnet_gpu::reference::image_quant::TEST_SHAPES;
use bitnet_gpu::reference::{ELEMENTS, Inputs as Seeded, rounded};
use bitnet_gpu::selftest::image_quant::Inputs;
use contract::image_quant::{LEAST_PART, MAX_IMAGES, MAX_LEN, part_len, parts};

use crate::support::{check, dimension, generated, on_lane, refused, short, size, zeros};

on_lane! {
    listed_shapes
    unusual_values
    the_largest_stands_anywhere
    generated_shapes
    no_images
    refusals
}

fn check_case<B: Backend>(b: &B, inputs: &Inputs, what: &str) {
    let Inputs { element, n, len, .. } = inputs;
    check(b, inputs, &inputs.expected(), format!("{element:?} n={n} len={len} {what}"));
}

fn listed_shapes<B: Backend>(b: &B) {
    for (i, &(n, len)) in TEST_SHAPES.iter().enumerate() {
        for element in ELEMENTS {
            check_case(b, &Inputs::new(element, n, len, i as u64), "");
        }
    }
}

fn unusual_values<B: Backend>(b: &B) {
    let odd = [0.0, -0.0, 1e-42, -1e-30, 6e4, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    for element in ELEMENTS {
        for len in [9, 16, 20_000] {
            let mut inputs = Inputs::new(element, odd.len(), len, 2);
            for (image, value) in inputs.x.chunks_mut(len).zip(odd) {
                image[len / 2] = rounded(element, value);
            }
            check_case(b, &inputs, "unusual");
        }
    }
}

/// First and last element of every part.
fn the_largest_stands_anywhere<B: Backend>(b: &B) {
    for len in [3 * LEAST_PART as usize + 16, 3 * LEAST_PART as usize + 7] {
        let (parts, part) = (parts(len as u64) as usize, part_len(len as u64) as usize);
        let places = (0..parts).flat_map(|i| [i * part, ((i + 1) * part).min(len) - 1]);
        let places: Vec<usize> = places.collect();
        let mut inputs = Inputs::new(ELEMENTS[0], places.len(), len, 3);
        for (image, at) in inputs.x.chunks_mut(len).zip(places) {
            image[at] = -100.0;
        }
        check_case(b, &inputs, "one large element");
    }
}

fn generated_shapes<B: Backend>(b: &B) {
    for i in 0..generated("image_quant") {
        let mut seeded = Seeded::new(9100 + i as u64);
        let (n, len) = (1 + seeded.below(9), size(&mut seeded, 30_000));
        let len = if seeded.below(2) == 0 { len.next_multiple_of(16) } else { len };
        check_case(b, &Inputs::new(ELEMENTS[seeded.below(3)], n, len, seeded.bits()), "generated");
    }
}

fn no_images<B: Backend>(b: &B) {
    let (x, q) = (&zeros::<B, f32>(b, 1), &mut zeros::<B, i8>(b, 1));
    let scales = &mut zeros::<B, f32>(b, 1);
    b.image_quant(ImageQuant { x, q, scales, n: 0, len: 7 }).expect("nothing to do");
}

fn refusals<B: Backend>(b: &B) {
    let (n, len) = (3, 50);
    let (x, less) = (&zeros::<B, f32>(b, 150), &zeros::<B, f32>(b, 149));
    let (q, few) = (&mut zeros::<B, i8>(b, 150), &mut zeros::<B, i8>(b, 149));
    let (scales, two) = (&mut zeros::<B, f32>(b, 3), &mut zeros::<B, f32>(b, 2));
    for len in [0, MAX_LEN + 1] {
        let bad = dimension("elements of an image");
        refused!(bad, b.image_quant(ImageQuant { x, q, scales, n, len }));
    }
    let op = ImageQuant { x, q, scales, n: MAX_IMAGES + 1, len };
    refused!(dimension("images"), b.image_quant(op));
    refused!(short("x"), b.image_quant(ImageQuant { x: less, q, scales, n, len }));
    refused!(short("q"), b.image_quant(ImageQuant { x, q: few, scales, n, len }));
    refused!(short("scales"), b.image_quant(ImageQuant { x, q, scales: two, n, len }));
}
