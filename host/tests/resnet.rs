//! The ResNet example on the CPU lane: small networks of both kinds of block, against plain loops in
//! f64 that know nothing of folding, packing or epilogues. (`tools/resnet.py` holds the real sizes
//! against PyTorch on a GPU machine.)

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use bitnet_gpu::reference::Inputs as Seeded;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// Tensors by name: shape and values.
type File = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

const CLASSES: usize = 7;
const IMAGES: [usize; 4] = [2, 3, 37, 41];

fn write(path: &Path, file: &File) {
    let bytes: Vec<Vec<u8>> =
        file.values().map(|(_, v)| v.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = file.iter().zip(&bytes).map(|((name, (shape, _)), bytes)| {
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("a tensor"))
    });
    std::fs::write(path, safetensors::serialize(views, None).expect("a file")).expect("a file");
}

/// A network of `width` channels with `blocks` blocks in each stage.
struct Plan {
    bottleneck: bool,
    width: usize,
    blocks: [usize; 4],
}

/// One convolution and its norm: names, `[k, c, r]`, stride.
struct Conv {
    names: [String; 2],
    shape: [usize; 3],
    stride: usize,
}

impl Plan {
    fn expansion(&self) -> usize {
        if self.bottleneck { 4 } else { 1 }
    }

    /// The convolutions of a block, the shortcut's last, where it has one.
    fn block(&self, stage: usize, index: usize, into: usize) -> (Vec<Conv>, Option<Conv>) {
        let name = format!("layer{}.{index}", stage + 1);
        let (width, stride) = (self.width << stage, if stage > 0 && index == 0 { 2 } else { 1 });
        let out = width * self.expansion();
        let shapes = match self.bottleneck {
            true => vec![([width, into, 1], 1), ([width, width, 3], stride), ([out, width, 1], 1)],
            false => vec![([width, into, 3], stride), ([out, width, 3], 1)],
        };
        let convs = shapes.into_iter().zip(1..).map(|((shape, stride), i)| Conv {
            names: [format!("{name}.conv{i}"), format!("{name}.bn{i}")],
            shape,
            stride,
        });
        let short = (stride != 1 || into != out).then(|| Conv {
            names: [format!("{name}.downsample.0"), format!("{name}.downsample.1")],
            shape: [out, into, 1],
            stride,
        });
        (convs.collect(), short)
    }

    fn stem(&self) -> Conv {
        let names = ["conv1".to_owned(), "bn1".to_owned()];
        Conv { names, shape: [self.width, 3, 7], stride: 2 }
    }

    /// Channels before the head.
    fn last(&self) -> usize {
        (self.width << 3) * self.expansion()
    }

    fn weights(&self, seed: u64) -> File {
        let mut seeded = Seeded::new(seed);
        let mut file = File::new();
        let mut add = |conv: &Conv| {
            let [k, c, r] = conv.shape;
            let reach = (3.0 / (c * r * r) as f32).sqrt();
            let w = seeded.floats(k * c * r * r, reach);
            file.insert(format!("{}.weight", conv.names[0]), (vec![k, c, r, r], w));
            let mut norm = |part: &str, values: Vec<f32>| {
                file.insert(format!("{}.{part}", conv.names[1]), (vec![k], values));
            };
            norm("weight", seeded.floats(k, 0.3).iter().map(|x| 1.0 + x).collect());
            norm("bias", seeded.floats(k, 0.3));
            norm("running_mean", seeded.floats(k, 0.3));
            norm("running_var", seeded.floats(k, 0.4).iter().map(|x| 1.0 + x).collect());
        };
        add(&self.stem());
        let mut into = self.width;
        for stage in 0..4 {
            for index in 0..self.blocks[stage] {
                let (convs, short) = self.block(stage, index, into);
                convs.iter().chain(&short).for_each(&mut add);
                into = (self.width << stage) * self.expansion();
            }
        }
        let last = self.last();
        let fc = seeded.floats(CLASSES * last, 0.5);
        file.insert("fc.weight".into(), (vec![CLASSES, last], fc));
        file.insert("fc.bias".into(), (vec![CLASSES], seeded.floats(CLASSES, 0.5)));
        file
    }
}

/// Images `[n, c, h, w]` in f64.
#[derive(Clone)]
struct Tensor {
    dims: [usize; 4],
    values: Vec<f64>,
}

impl Tensor {
    fn at(&self, [n, c, h, w]: [usize; 4]) -> f64 {
        let [_, channels, height, width] = self.dims;
        self.values[((n * channels + c) * height + h) * width + w]
    }

    /// Each output is `of(image, channel, row, column)`.
    fn make(dims: [usize; 4], of: impl Fn([usize; 4]) -> f64) -> Self {
        let [n, c, h, w] = dims;
        let index = |i: usize| [i / (c * h * w), i / (h * w) % c, i / w % h, i % w];
        Self { dims, values: (0..n * c * h * w).map(|i| of(index(i))).collect() }
    }

    /// Indices of the taps of a window of `r`, padded by half of it, that are inside.
    fn taps(place: usize, stride: usize, r: usize, len: usize) -> impl Iterator<Item = [usize; 2]> {
        (0..r).filter_map(move |tap| {
            let at = (place * stride + tap).checked_sub(r / 2)?;
            (at < len).then_some([tap, at])
        })
    }

    fn conv(&self, file: &File, conv: &Conv) -> Self {
        let ([n, c, h, w], [k, _, r]) = (self.dims, conv.shape);
        let out = |len: usize| (len + 2 * (r / 2) - r) / conv.stride + 1;
        let weight = &file[&format!("{}.weight", conv.names[0])].1;
        let part =
            |part: &str, i: usize| f64::from(file[&format!("{}.{part}", conv.names[1])].1[i]);
        Self::make([n, k, out(h), out(w)], |[n, k, p, q]| {
            let mut sum = 0.0;
            for [y, row] in Self::taps(p, conv.stride, r, h) {
                for [x, column] in Self::taps(q, conv.stride, r, w) {
                    for channel in 0..c {
                        let factor = weight[((k * c + channel) * r + y) * r + x];
                        sum += f64::from(factor) * self.at([n, channel, row, column]);
                    }
                }
            }
            let scale = part("weight", k) / (part("running_var", k) + 1e-5).sqrt();
            (sum - part("running_mean", k)) * scale + part("bias", k)
        })
    }

    fn map(mut self, f: impl Fn(usize, f64) -> f64) -> Self {
        self.values.iter_mut().enumerate().for_each(|(i, v)| *v = f(i, *v));
        self
    }

    fn relu(self) -> Self {
        self.map(|_, v| v.max(0.0))
    }

    fn max_pool(&self) -> Self {
        let [n, c, h, w] = self.dims;
        let out = |len: usize| (len - 1) / 2 + 1;
        Self::make([n, c, out(h), out(w)], |[n, c, p, q]| {
            let rows = Self::taps(p, 2, 3, h);
            let all = rows.flat_map(|[_, y]| Self::taps(q, 2, 3, w).map(move |[_, x]| [y, x]));
            all.map(|[y, x]| self.at([n, c, y, x])).fold(f64::NEG_INFINITY, f64::max)
        })
    }
}

/// Logits by the definition of the network.
fn truth(plan: &Plan, file: &File, images: &[f32]) -> Vec<f64> {
    let images = Tensor { dims: IMAGES, values: images.iter().map(|&x| f64::from(x)).collect() };
    let mut x = images.conv(file, &plan.stem()).relu().max_pool();
    for stage in 0..4 {
        for index in 0..plan.blocks[stage] {
            let (convs, short) = plan.block(stage, index, x.dims[1]);
            let short = short.map_or_else(|| x.clone(), |short| x.conv(file, &short));
            let last = convs.len() - 1;
            let mut y = x.clone();
            for (i, conv) in convs.iter().enumerate() {
                y = y.conv(file, conv);
                if i < last {
                    y = y.relu();
                }
            }
            x = y.map(|i, v| v + short.values[i]).relu();
        }
    }
    let [n, c, h, w] = x.dims;
    let (fc, bias) = (&file["fc.weight"].1, &file["fc.bias"].1);
    let mut logits = Vec::new();
    for image in 0..n {
        for class in 0..CLASSES {
            let mean = |channel: usize| {
                let plane = &x.values[(image * c + channel) * h * w..][..h * w];
                plane.iter().sum::<f64>() / (h * w) as f64
            };
            let products = (0..c).map(|k| f64::from(fc[class * c + k]) * mean(k));
            logits.push(products.sum::<f64>() + f64::from(bias[class]));
        }
    }
    logits
}

fn example() -> PathBuf {
    let exe = std::env::current_exe().expect("this program's path");
    let folder = exe.ancestors().nth(2).expect("a target folder").join("examples");
    folder.join("resnet").with_extension(std::env::consts::EXE_EXTENSION)
}

/// Runs the example and compares its logits; `within` is relative to the largest.
fn check(plan: &Plan, name: &str, args: &[&str], within: f64) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let file = plan.weights(5);
    write(&path("weights"), &file);
    let images = Seeded::new(6).floats(IMAGES.iter().product(), 2.0);
    write(&path("images"), &BTreeMap::from([("input".into(), (IMAGES.into(), images.clone()))]));
    let output = Command::new(example())
        .arg(path("weights"))
        .arg("--input")
        .arg(path("images"))
        .arg("--out")
        .arg(path("logits"))
        .args(["--device", "cpu"])
        .args(args)
        .output()
        .expect("the example starts; `cargo test` builds it when no target is named");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains(name) && text.contains("images/s"), "{text}");

    let bytes = std::fs::read(path("logits")).expect("logits");
    let logits =
        SafeTensors::deserialize(&bytes).expect("a file").tensor("logits").expect("logits");
    assert_eq!(logits.shape(), [IMAGES[0], CLASSES]);
    let expected = truth(plan, &file, &images);
    let largest = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    assert!(largest > 0.5, "a network that says something: {expected:?}");
    for (found, expected) in logits.data().as_chunks::<4>().0.iter().zip(&expected) {
        let found = f64::from(f32::from_le_bytes(*found));
        assert!(
            (found - expected).abs() <= within * largest,
            "{found}, expected {expected}: {text}"
        );
    }
}

#[test]
fn basic_blocks() {
    let plan = Plan { bottleneck: false, width: 4, blocks: [2, 1, 1, 2] };
    check(&plan, "resnet14", &[], 1e-5);
    check(&plan, "resnet14", &["--type", "bf16", "--math", "tensor-core"], 0.03);
}

#[test]
fn bottleneck_blocks() {
    let plan = Plan { bottleneck: true, width: 3, blocks: [1, 2, 1, 1] };
    check(&plan, "resnet17", &[], 1e-5);
    check(&plan, "resnet17", &["--type", "f16"], 0.01);
}
