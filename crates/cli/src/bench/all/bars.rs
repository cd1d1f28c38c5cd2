//! Plots of bars in groups, lying, with their values written beside them.

use std::path::Path;

use anyhow::{anyhow, Result};
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::figures::figure;

pub const FONT: &str = "sans-serif";
pub const WIDTH: u32 = 860;
pub const HEIGHT: u32 = 520;

pub struct Bars<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub unit: &'a str,
    pub is_logarithmic: bool,
    pub groups: Vec<Group>,
}

pub struct Group {
    pub name: String,
    pub bars: Vec<Bar>,
}

pub struct Bar {
    pub series: String,
    pub colour: RGBColor,
    pub value: f64,
}

/// Pixels of a bar with its distance to the next, and around all of them.
const BAR_HEIGHT: u32 = 22;
const FRAME_HEIGHT: u32 = 130;
/// Share of a group's height that its bars have.
const FILLED: f64 = 0.8;
/// Pixels of a letter of a group's name, or so.
const LETTER_WIDTH: usize = 7;
/// Pixels between a bar and its value.
const GAP: i32 = 5;
/// Between a name and the axis; an ordinary one at the end is not drawn.
const BLANK: char = '\u{a0}';
/// Room beyond the longest bar for its value.
const BEYOND: f64 = 1.18;
const BEYOND_LOGARITHMIC: f64 = 4.0;

pub fn draw(path: &Path, plot: &Bars) -> Result<()> {
    on(path, plot).map_err(|error| anyhow!("cannot draw {}: {error}", path.display()))
}

fn on(path: &Path, plot: &Bars) -> Result<(), Box<dyn std::error::Error>> {
    let bars = || plot.groups.iter().flat_map(|group| &group.bars);
    let longest_name = plot.groups.iter().map(|group| group.name.len()).max().unwrap_or(0);
    let root = SVGBackend::new(path, (WIDTH, height(plot))).into_drawing_area();
    root.fill(&WHITE)?;
    let (least, most) = super::curves::extent(bars().map(|bar| bar.value));
    let groups = plot.groups.len() as f64;
    let mut builder = ChartBuilder::on(&root);
    builder
        .caption(plot.title, (FONT, 20))
        .margin(14)
        .x_label_area_size(46)
        .y_label_area_size((longest_name * LETTER_WIDTH + 16) as u32);
    // From the top down, with room for the legend below.
    let y = (groups - 0.5 + groups_of_legend(plot))..-0.5;
    if plot.is_logarithmic {
        let x = (least / 2.0..most * BEYOND_LOGARITHMIC).log_scale();
        fill(&mut builder.build_cartesian_2d(x, y)?, plot, least / 2.0)?;
    } else {
        fill(&mut builder.build_cartesian_2d(0.0..most * BEYOND, y)?, plot, 0.0)?;
    }
    Ok(root.present()?)
}

fn height(plot: &Bars) -> u32 {
    FRAME_HEIGHT + (rows(plot) + legend_rows(plot)) as u32 * BAR_HEIGHT
}

/// Rows of all bars, with one between groups.
fn rows(plot: &Bars) -> usize {
    plot.groups.iter().map(|group| group.bars.len() + 1).sum()
}

fn legend_rows(plot: &Bars) -> usize {
    series(plot).len() + 1
}

/// How many groups are as high as the legend.
fn groups_of_legend(plot: &Bars) -> f64 {
    (legend_rows(plot) * plot.groups.len()) as f64 / rows(plot).max(1) as f64
}

type Chart<'a, X, Y> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>;

fn fill<'a, X, Y>(
    chart: &mut Chart<'a, X, Y>,
    plot: &Bars,
    from: f64,
) -> Result<(), Box<dyn std::error::Error>>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let name = |y: &f64| {
        let is_group = (y - y.round()).abs() < 1e-6 && *y > -0.1;
        plot.groups
            .get(y.round().max(0.0) as usize)
            .filter(|_| is_group)
            .map_or_else(String::new, |group| format!("{}{BLANK}", group.name))
    };
    chart
        .configure_mesh()
        .x_desc(plot.x)
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .set_tick_mark_size(LabelAreaPosition::Left, 0)
        .y_labels(plot.groups.len() * 2)
        .y_label_formatter(&name)
        .x_label_formatter(&|x| number(*x))
        .label_style((FONT, 13))
        .draw()?;
    for (series, colour) in series(plot) {
        draw_series(chart, plot, &series, colour, from)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 14))
        .draw()?;
    Ok(())
}

/// The bars of one series in all groups, with their values.
fn draw_series<'a, X, Y>(
    chart: &mut Chart<'a, X, Y>,
    plot: &Bars,
    series: &str,
    colour: RGBColor,
    from: f64,
) -> Result<(), Box<dyn std::error::Error>>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let mut places = Vec::new();
    for (at, group) in plot.groups.iter().enumerate() {
        let thickness = FILLED / group.bars.len() as f64;
        for (index, bar) in group.bars.iter().enumerate().filter(|(_, bar)| bar.series == series) {
            let top = at as f64 - FILLED / 2.0 + thickness * index as f64;
            places.push((top, top + thickness * 0.9, bar.value));
        }
    }
    let bar = |(top, bottom, value): &(f64, f64, f64)| {
        Rectangle::new([(from, *top), (value.max(from), *bottom)], colour.filled())
    };
    chart
        .draw_series(places.iter().map(bar))?
        .label(series)
        .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
    let style = TextStyle::from((FONT, 12).into_font()).pos(Pos::new(HPos::Left, VPos::Center));
    let value = |(top, bottom, value): &(f64, f64, f64)| {
        let text = figure(*value, plot.unit);
        EmptyElement::at((value.max(from), (top + bottom) / 2.0))
            + Text::new(text, (GAP, 0), style.clone())
    };
    chart.draw_series(places.iter().map(value))?;
    Ok(())
}

/// Each series once, with its colour.
fn series(plot: &Bars) -> Vec<(String, RGBColor)> {
    let mut all: Vec<(String, RGBColor)> = Vec::new();
    for bar in plot.groups.iter().flat_map(|group| &group.bars) {
        if !all.iter().any(|(series, _)| *series == bar.series) {
            all.push((bar.series.clone(), bar.colour));
        }
    }
    all
}

/// Short enough for an axis: two digits or three.
pub fn number(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 1e6 => (value / 1e6, " M"),
        value if value >= 1e3 => (value / 1e3, " K"),
        value => (value, ""),
    };
    let digits = match value {
        value if value >= 100.0 || value <= 0.0 => 0,
        value => (1.0 - value.log10().floor()).max(1.0) as usize,
    };
    let text = format!("{value:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown =
            [0.0, 0.0123, 0.25, 1.0, 9.44, 30.0, 12.34, 550.0, 1000.0, 22_400.0, 3_000_000.0];
        assert_eq!(
            shown.map(number),
            ["0", "0.012", "0.25", "1", "9.4", "30", "12.3", "550", "1 K", "22.4 K", "3 M"]
        );
    }

    #[test]
    fn each_series_is_named_once() {
        let bar = |series: &str| Bar { series: series.into(), colour: BLACK, value: 1.0 };
        let group = || Group { name: "g".into(), bars: vec![bar("a"), bar("b")] };
        let groups = vec![group(), group()];
        let plot = Bars { title: "", x: "", unit: "", is_logarithmic: false, groups };
        assert_eq!(series(&plot).iter().map(|it| it.0.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }
}
