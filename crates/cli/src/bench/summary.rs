//! Medians over the rounds, ratios, warnings; as a table or JSON.

use serde::Serialize;

use super::pair::Sample;
use crate::args::{self, Measure, Pin, Way};
use crate::{child, figures};

/// More difference than this between rounds of the same way is not the way's doing.
const SPREAD_MAX: f64 = 0.3;

#[derive(Serialize)]
pub struct Summary {
    schema: u32,
    shunt: &'static str,
    measure: Measure,
    size: usize,
    seconds: f64,
    rounds: u32,
    pin: Pin,
    cores: usize,
    kernel: String,
    unit: &'static str,
    warnings: Vec<String>,
    ways: Vec<Line>,
}

/// One way.
#[derive(Serialize)]
struct Line {
    way: Way,
    /// Median over the rounds of what the measure asks for, in `unit`.
    value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    percentiles_us: Option<Percentiles>,
    /// How many times better than kernel TCP.
    ratio_to_tcp: Option<f64>,
    /// How much of what the bare ring reaches.
    share_of_ring: Option<f64>,
    /// Of both processes together, over all rounds.
    cpu_seconds: f64,
    cpu_us_per_operation: f64,
    cpu_seconds_per_gb: f64,
    operations: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    streams_upgraded: Option<u64>,
    values: Vec<f64>,
    #[serde(skip)]
    all_percentiles: Vec<Percentiles>,
}

#[derive(Serialize, Clone, Copy)]
struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
}

pub fn name(way: Way) -> &'static str {
    match way {
        Way::Tcp => "tcp",
        Way::Unix => "unix",
        Way::Ring => "ring",
        Way::Shunt => "shunt",
    }
}

impl Summary {
    pub fn new(args: &args::Bench, size: usize) -> Summary {
        let mut summary = Summary {
            schema: 1,
            shunt: env!("CARGO_PKG_VERSION"),
            measure: args.measure,
            size,
            seconds: args.seconds,
            rounds: args.rounds,
            pin: args.pin,
            cores: child::cores().len(),
            kernel: read_line("/proc/sys/kernel/osrelease"),
            unit: match args.measure {
                Measure::Latency => "us",
                Measure::Stream => "GB/s",
                Measure::Rate => "messages/s",
                Measure::Connect => "connections/s",
            },
            warnings: Vec::new(),
            ways: Vec::new(),
        };
        summary.look_at_the_machine();
        summary
    }

    pub fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn look_at_the_machine(&mut self) {
        let load = read_line("/proc/loadavg");
        let load: f64 = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
        if load > 0.5 * self.cores as f64 {
            self.warn(format!("the load was {load} before the start; end other programs first"));
        }
        if self.pin == Pin::Two && self.cores < 2 {
            self.warn("there is one core only, so both processes share it".into());
        }
    }

    pub fn add(&mut self, way: Way, sample: Sample) {
        let measure = self.measure;
        let index = self.ways.iter().position(|line| line.way == way).unwrap_or_else(|| {
            self.ways.push(Line::new(way));
            self.ways.len() - 1
        });
        self.ways[index].add(measure, &sample);
    }

    pub fn finish(&mut self) {
        for line in &mut self.ways {
            line.value = median(line.values.iter().copied());
            let of = |pick: fn(&Percentiles) -> f64| median(line.all_percentiles.iter().map(pick));
            if matches!(self.measure, Measure::Latency | Measure::Connect) {
                let (p50, p90, p99) = (of(|it| it.p50), of(|it| it.p90), of(|it| it.p99));
                line.percentiles_us = Some(Percentiles { p50, p90, p99 });
            }
        }
        let value = |way| self.ways.iter().find(|line| line.way == way).map(|line| line.value);
        let (tcp, ring) = (value(Way::Tcp), value(Way::Ring));
        let smaller_is_better = self.measure == Measure::Latency;
        let times_better = |mine: f64, other: f64| {
            if smaller_is_better {
                other / mine
            } else {
                mine / other
            }
        };
        for line in &mut self.ways {
            line.ratio_to_tcp = tcp.map(|tcp| times_better(line.value, tcp));
            line.share_of_ring = ring.map(|ring| times_better(line.value, ring));
        }
        self.look_at_the_rounds();
    }

    fn look_at_the_rounds(&mut self) {
        let mut warnings = Vec::new();
        for line in &self.ways {
            let least = line.values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = line.values.iter().copied().fold(0.0, f64::max);
            let spread = (most - least) / line.value;
            if spread > SPREAD_MAX {
                let (way, percent) = (name(line.way), (spread * 100.0).round());
                warnings.push(format!(
                    "{way} differed by {percent} % between rounds: the machine is noisy; end other programs, or take more rounds"
                ));
            }
            // Connections of one exchange are not worth an upgrade.
            if line.streams_upgraded == Some(0) && self.measure != Measure::Connect {
                warnings.push("no stream of shunt was upgraded, so this is kernel TCP".into());
            }
        }
        self.warnings.extend(warnings);
    }

    pub fn table(&self) -> String {
        let what = match self.measure {
            Measure::Latency => "half a round trip",
            Measure::Stream => "one stream",
            Measure::Rate => "messages one way",
            Measure::Connect => "connect, one exchange, close",
        };
        let where_ = match self.pin {
            Pin::Two => "a core each",
            Pin::One => "both on one core",
            Pin::Free => "any core",
        };
        let mut text = format!(
            "{what}, {} bytes, {where_}; medians of {} rounds of {} s\n",
            self.size, self.rounds, self.seconds
        );
        text.push_str(&self.head());
        self.ways.iter().for_each(|line| text.push_str(&self.line(line)));
        text.push_str("CPU is of both processes together.\n");
        for warning in &self.warnings {
            text.push_str(&format!("warning: {warning}\n"));
        }
        text
    }

    fn head(&self) -> String {
        let value = match self.measure {
            Measure::Latency => "p50 us       p90 us       p99 us",
            Measure::Connect => "per second       p50 us       p90 us       p99 us",
            _ => self.unit,
        };
        let cpu = if self.measure == Measure::Stream { "CPU s/GB" } else { "CPU us each" };
        format!("{:<6} {value:>width$} {cpu:>12} {:>8}\n", "", "x tcp", width = self.width())
    }

    fn width(&self) -> usize {
        match self.measure {
            Measure::Latency => 38,
            Measure::Connect => 51,
            _ => 12,
        }
    }

    fn line(&self, line: &Line) -> String {
        let mut figures = Vec::new();
        if self.measure != Measure::Latency {
            figures.push(line.value);
        }
        if let Some(Percentiles { p50, p90, p99 }) = line.percentiles_us {
            figures.extend([p50, p90, p99]);
        }
        let figures: Vec<String> =
            figures.into_iter().map(|it| format!("{:>12}", short(it))).collect();
        let cpu = match self.measure {
            Measure::Stream => line.cpu_seconds_per_gb,
            _ => line.cpu_us_per_operation,
        };
        let ratio = line.ratio_to_tcp.map_or("-".into(), |ratio| format!("{ratio:.2}"));
        let (way, figures) = (name(line.way), figures.join(" "));
        format!("{way:<6} {figures} {:>12} {ratio:>8}\n", short(cpu))
    }
}

impl Line {
    fn new(way: Way) -> Line {
        Line {
            way,
            value: 0.0,
            percentiles_us: None,
            ratio_to_tcp: None,
            share_of_ring: None,
            cpu_seconds: 0.0,
            cpu_us_per_operation: 0.0,
            cpu_seconds_per_gb: 0.0,
            operations: 0,
            bytes: 0,
            streams_upgraded: None,
            values: Vec::new(),
            all_percentiles: Vec::new(),
        }
    }

    fn add(&mut self, measure: Measure, sample: &Sample) {
        let client = &sample.client;
        self.values.push(match measure {
            Measure::Latency => client.p50_us,
            Measure::Stream => client.bytes as f64 / client.seconds / 1e9,
            Measure::Rate | Measure::Connect => client.operations as f64 / client.seconds,
        });
        let (p50, p90, p99) = (client.p50_us, client.p90_us, client.p99_us);
        self.all_percentiles.push(Percentiles { p50, p90, p99 });
        self.cpu_seconds += client.cpu_seconds + sample.server_cpu_seconds;
        self.operations += client.all_operations;
        self.bytes += client.all_bytes;
        self.cpu_us_per_operation = self.cpu_seconds * 1e6 / self.operations.max(1) as f64;
        self.cpu_seconds_per_gb = self.cpu_seconds * 1e9 / self.bytes.max(1) as f64;
        if let Some(count) = sample.streams_upgraded {
            *self.streams_upgraded.get_or_insert(0) += count;
        }
    }
}

fn read_line(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
}

/// Three digits or so.
fn short(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 0.1 => format!("{value:.2}"),
        value => format!("{value:.4}"),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    figures::median(&values.collect::<Vec<_>>()).unwrap_or(0.0)
}
