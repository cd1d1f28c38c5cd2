//! The plots of a run: which figures of it go where.

use std::path::Path;

use anyhow::Result;
use plotters::style::RGBColor;

use super::bars::{self, Bar, Bars, Group};
use super::curves::{self, Curve, Curves, Point, Shape};
use super::plan::MANY_ACTIVE;
use super::run::Run;
use super::tables::{label, title};
use crate::args::bench::{Measure, Part, Pin, Way};
use crate::bench::against::{both, Both, BESIDE};
use crate::bench::case::Case;
use crate::bench::line::{lines, Line};

/// One that was drawn.
pub struct Plot {
    pub part: Part,
    pub file: &'static str,
    pub title: &'static str,
}

/// Colours that people with any kind of colour vision can tell apart (Okabe and Ito).
fn colour(way: Way) -> RGBColor {
    match way {
        Way::Tcp => RGBColor(213, 94, 0),
        Way::Unix => RGBColor(230, 159, 0),
        Way::Ring => RGBColor(0, 158, 115),
        Way::Shunt => RGBColor(0, 114, 178),
        Way::Copy | Way::Single => RGBColor(70, 70, 70),
    }
}

fn shape(way: Way) -> Shape {
    match way {
        Way::Tcp => Shape::Disc,
        Way::Unix => Shape::Triangle,
        Way::Ring => Shape::Circle,
        Way::Shunt => Shape::Square,
        Way::Copy | Way::Single => Shape::Cross,
    }
}

const WAYS: [Way; 5] = [Way::Tcp, Way::Unix, Way::Ring, Way::Shunt, Way::Copy];

/// Draws all that the run has figures for.
pub fn draw(run: &Run, folder: &Path) -> Result<Vec<Plot>> {
    let mut plots = Vec::new();
    for plot in CURVES {
        let curves = curves_of(plot, run);
        if curves.iter().any(|curve| curve.points.len() > 1) {
            let drawn = Curves { title: plot.title, x: plot.x, y: plot.y, curves };
            curves::draw(&folder.join(plot.file), &drawn)?;
            plots.push(Plot { part: plot.part, file: plot.file, title: plot.title });
        }
    }
    for plot in BARS {
        let groups = (plot.groups)(run);
        if !groups.is_empty() {
            let BarPlot { title, x, unit, is_logarithmic, .. } = *plot;
            let drawn = Bars { title, x, unit, is_logarithmic, groups };
            bars::draw(&folder.join(plot.file), &drawn)?;
            plots.push(Plot { part: plot.part, file: plot.file, title: plot.title });
        }
    }
    Ok(plots)
}

/// A plot of lines: a point for each case that is in it.
struct CurvePlot {
    part: Part,
    file: &'static str,
    title: &'static str,
    x: &'static str,
    y: &'static str,
    is_in: fn(&Case) -> bool,
    x_of: fn(&Case) -> f64,
    y_of: fn(&Line) -> Point,
}

const CURVES: &[CurvePlot] = &[
    CurvePlot {
        part: Part::Latency,
        file: "latency.svg",
        title: "Half a round trip over size: p50, shade up to p99",
        x: "bytes in a message",
        y: "us",
        is_in: |case| case.measure == Measure::Latency && case.pin == Pin::Two,
        x_of: |case| case.size as f64,
        y_of: half_round_trip,
    },
    CurvePlot {
        part: Part::Stream,
        file: "bandwidth.svg",
        title: "Bandwidth of one stream over size, and the limit of two copies",
        x: "bytes in a write",
        y: "GB/s",
        is_in: |case| case.measure == Measure::Stream && case.pin == Pin::Two,
        x_of: |case| case.size as f64,
        y_of: value,
    },
    CurvePlot {
        part: Part::Stream,
        file: "cpu-per-gb.svg",
        title: "CPU time of both processes for a GB over size",
        x: "bytes in a write",
        y: "s/GB",
        is_in: |case| case.measure == Measure::Stream && case.pin == Pin::Two,
        x_of: |case| case.size as f64,
        y_of: |line| Point { x: 0.0, y: line.cpu_seconds_per_gb, worse: None },
    },
    CurvePlot {
        part: Part::Streams,
        file: "latency-over-streams.svg",
        title: "Half a round trip through epoll, one active stream of many: p50, shade up to p99",
        x: "streams",
        y: "us",
        is_in: |case| case.measure == Measure::Streams && case.active == 1 && case.pairs == 1,
        x_of: |case| f64::from(case.streams),
        y_of: half_round_trip,
    },
    CurvePlot {
        part: Part::Streams,
        file: "rate-over-streams.svg",
        title: "Request-replies a second through epoll, up to 100 active streams",
        x: "streams",
        y: "request-replies/s",
        is_in: |case| {
            case.measure == Measure::Streams
                && case.active == MANY_ACTIVE.min(case.streams)
                && case.outstanding == case.active
                && case.pairs == 1
        },
        x_of: |case| f64::from(case.streams),
        y_of: value,
    },
];

fn value(line: &Line) -> Point {
    Point { x: 0.0, y: line.value, worse: None }
}

fn half_round_trip(line: &Line) -> Point {
    let percentiles = line.percentiles_us;
    let p50 = percentiles.map_or(line.value, |it| it.p50);
    Point { x: 0.0, y: p50, worse: percentiles.map(|it| it.p99) }
}

fn curves_of(plot: &CurvePlot, run: &Run) -> Vec<Curve> {
    let cases: Vec<(Case, Vec<Line>)> = (run.cases().into_iter())
        .filter(plot.is_in)
        .map(|case| (case, lines(&case, &run.records)))
        .collect();
    let curve = |way: Way| {
        let point = |(case, lines): &(Case, Vec<Line>)| {
            let line = lines.iter().find(|line| line.way == way)?;
            Some(Point { x: (plot.x_of)(case), ..(plot.y_of)(line) }).filter(|it| it.y > 0.0)
        };
        let mut points: Vec<Point> = cases.iter().filter_map(point).collect();
        points.sort_by(|one, other| one.x.total_cmp(&other.x));
        let (name, is_limit) = (title(way).to_owned(), way == Way::Copy);
        Curve { name, colour: colour(way), is_limit, marker: shape(way), points }
    };
    WAYS.map(curve).into_iter().filter(|curve| !curve.points.is_empty()).collect()
}

/// A plot of bars in groups.
struct BarPlot {
    part: Part,
    file: &'static str,
    title: &'static str,
    x: &'static str,
    unit: &'static str,
    is_logarithmic: bool,
    groups: fn(&Run) -> Vec<Group>,
}

const BARS: &[BarPlot] = &[
    BarPlot {
        part: Part::Rate,
        file: "messages.svg",
        title: "Messages of 8 bytes one way",
        x: "messages/s",
        unit: "/s",
        is_logarithmic: false,
        groups: |run| by_way(run, Measure::Rate, |line| line.value),
    },
    BarPlot {
        part: Part::Rate,
        file: "cpu-per-million-messages.svg",
        title: "CPU time of both processes for a million messages or request-replies",
        x: "s",
        unit: "s",
        is_logarithmic: true,
        groups: cpu_per_million,
    },
    BarPlot {
        part: Part::Connect,
        file: "connections.svg",
        title: "Connect, one exchange, close",
        x: "connections/s",
        unit: "/s",
        is_logarithmic: false,
        groups: |run| by_way(run, Measure::Connect, |line| line.value),
    },
    BarPlot {
        part: Part::Think,
        file: "think.svg",
        title: "Half a round trip with pauses before messages",
        x: "us",
        unit: "us",
        is_logarithmic: true,
        groups: |run| by_way(run, Measure::Think, |line| line.value),
    },
    BarPlot {
        part: Part::Idle,
        file: "idle.svg",
        title: "CPU time of both processes while streams are idle",
        x: "ms a second",
        unit: "ms/s",
        is_logarithmic: false,
        groups: |run| by_way(run, Measure::Idle, |line| line.value),
    },
    BarPlot {
        part: Part::Passthrough,
        file: "passthrough.svg",
        title: "Calls on descriptors that are no streams, and fork",
        x: "ns",
        unit: "ns",
        is_logarithmic: true,
        groups: calls,
    },
    BarPlot {
        part: Part::Apps,
        file: "apps.svg",
        title: "Programs, accelerated",
        x: "times plain",
        unit: "x",
        is_logarithmic: true,
        groups: times_plain,
    },
];

/// A group for each case of a measure, a bar for each way.
fn by_way(run: &Run, measure: Measure, of: fn(&Line) -> f64) -> Vec<Group> {
    let cases = run.cases().into_iter().filter(|case| case.measure == measure);
    cases.map(|case| group(label(&case), &lines(&case, &run.records), of)).collect()
}

fn group(name: String, lines: &[Line], of: fn(&Line) -> f64) -> Group {
    let bar = |way: Way| {
        let line = lines.iter().find(|line| line.way == way)?;
        Some(Bar { series: title(way).to_owned(), colour: colour(way), value: of(line) })
    };
    Group { name, bars: WAYS.into_iter().filter_map(bar).collect() }
}

/// Small messages only: a microsecond for each is a second for a million.
fn cpu_per_million(run: &Run) -> Vec<Group> {
    let name = |case: &Case| match case.measure {
        Measure::Latency if case.size < 64 => Some(format!("back and forth, {}", label(case))),
        Measure::Rate => Some(format!("one way, {}", label(case))),
        Measure::Streams if case.active > 8 => Some(format!("epoll, {}", label(case))),
        Measure::Think if case.per_second > 0 => Some(format!("back and forth, {}", label(case))),
        _ => None,
    };
    let cases = run.cases().into_iter().filter_map(|case| Some((name(&case)?, case)));
    cases
        .map(|(name, case)| group(name, &lines(&case, &run.records), |it| it.cpu_us_per_operation))
        .collect()
}

/// A bar for each call plain and with the library, and one for the library beside a stream.
fn calls(run: &Run) -> Vec<Group> {
    let all = both(&run.passthrough);
    let bar = |series: &str, way, value| Bar { series: series.into(), colour: colour(way), value };
    let group = |it: &Both| {
        let mut bars =
            vec![bar("plain", Way::Tcp, it.plain), bar("with the library", Way::Shunt, it.shunt)];
        let beside = all.iter().find(|other| other.what.strip_suffix(BESIDE) == Some(it.what));
        bars.extend(beside.map(|it| bar("with it, beside a stream", Way::Ring, it.shunt)));
        Group { name: it.what.to_owned(), bars }
    };
    all.iter().filter(|it| !it.what.ends_with(BESIDE)).map(group).collect()
}

fn times_plain(run: &Run) -> Vec<Group> {
    let bar = |series: &str, way, value| Bar { series: series.into(), colour: colour(way), value };
    let group = |it: Both| Group {
        name: it.what.to_owned(),
        bars: vec![bar("plain", Way::Tcp, 1.0), bar("accelerated", Way::Shunt, it.ratio)],
    };
    both(&run.apps).into_iter().map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::example;
    use super::*;

    #[test]
    fn every_plot_has_figures_and_is_drawn() {
        let folder = std::env::temp_dir().join(format!("shunt-plots-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let plots = draw(&example(), &folder).unwrap();
        assert_eq!(plots.len(), CURVES.len() + BARS.len());
        for plot in &plots {
            let text = std::fs::read_to_string(folder.join(plot.file)).unwrap();
            assert!(
                text.starts_with("<svg") && text.trim_end().ends_with("</svg>"),
                "{}",
                plot.file
            );
            assert!(text.contains("Shunt") || text.contains("library") || text.contains("accel"));
        }
        assert!(draw(&Run::default(), &folder).unwrap().is_empty());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
