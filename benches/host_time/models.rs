//! A step of decoding: of one sequence, and of a batch.

use anyhow::ensure;
use bitnet_gpu::checkpoint::synth::{self, NamedConfig};
use bitnet_gpu::checkpoint::{Checkpoint, OpenOptions};
use bitnet_gpu::driver::CudaOptions;
use bitnet_gpu::model::{Batch, BatchOptions, Model, ModelError, Sequence, SequenceOptions};
use bitnet_gpu::ops::{CudaBackend, RowType};
use bitnet_gpu::reference::sample::GREEDY;

use super::Host;

const CAPACITY: usize = 1024;
/// Tokens of a prompt.
const AT: usize = 64;

pub(super) fn measure(host: &mut Host) -> anyhow::Result<()> {
    let names = |graph: bool, batch: usize| {
        let by = if graph { "graph" } else { "3 layers, no graph" };
        match batch {
            0 => format!("decode step, {by}"),
            _ => format!("decode step of a batch of {batch}, {by}"),
        }
    };
    let steps = [0, 1, 8, 64, 256].into_iter().flat_map(|batch| [(true, batch), (false, batch)]);
    let steps: Vec<_> = steps.filter(|&(graph, batch)| host.wants(&names(graph, batch))).collect();
    if steps.is_empty() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    synth::write(folder.path(), &NamedConfig::find("tiny")?, 0, &mut |_, _| {})?;
    let checkpoint = Checkpoint::open(folder.path(), &OpenOptions::default())?;
    let gpu = CudaBackend::open(CudaOptions::new(host.options.device).pdl(true))?;
    let model = Model::load(gpu, &checkpoint, &mut |_| {})?;
    ensure!(model.config().num_layers == 3, "the model has other layers");
    for (graph, batch) in steps {
        let name = names(graph, batch);
        if batch == 0 {
            let options = SequenceOptions {
                capacity: CAPACITY,
                kv: RowType::Bf16,
                chunk: 64,
                one_kernel: false,
            };
            host.time(
                &name,
                |_| Ok((Sequence::new(&model, options)?, CAPACITY)),
                |_, (sequence, at)| step(&model, sequence, at, graph),
            )?;
            continue;
        }
        let pages = batch * CAPACITY.div_ceil(64);
        let kv = RowType::Bf16;
        let options = BatchOptions {
            max_batch: batch,
            capacity: CAPACITY,
            pages,
            kv: kv.into(),
            chunk: 64,
            prompt_share: 64,
            prefix_cache: false,
            one_kernel: false,
            draft_rows: 0,
        };
        host.time(
            &name,
            |_| {
                let mut sequences = Batch::new(&model, options)?;
                for _ in 0..batch {
                    model.admit(&mut sequences, &[1; AT], &GREEDY)?;
                }
                Ok(sequences)
            },
            |_, sequences| model.decode_batch(sequences, graph),
        )?;
    }
    Ok(())
}

/// A step of a sequence, which begins anew at the end of the context: once in 960 steps.
fn step(
    model: &Model<CudaBackend>,
    sequence: &mut Sequence<CudaBackend>,
    at: &mut usize,
    graph: bool,
) -> Result<(), ModelError> {
    if *at == CAPACITY {
        sequence.begin(model.backend(), &[1; AT], &GREEDY)?;
        model.prefill(sequence, &[1; AT], 0)?;
        model.sample(sequence)?;
        *at = AT;
    }
    model.decode(sequence, *at, graph)?;
    *at += 1;
    Ok(())
}
