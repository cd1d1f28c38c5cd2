//! Plots of lines over a quantity, both on logarithmic axes.

use std::iter::{once, Once};
use std::path::Path;

use anyhow::{anyhow, Result};
use plotters::coord::ranged1d::Ranged;
use plotters::element::{Drawable, PointCollection};
use plotters::prelude::*;
use plotters_backend::{BackendCoord, DrawingErrorKind};

use super::bars::{number, FONT, HEIGHT, WIDTH};

pub struct Curves<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    pub curves: Vec<Curve>,
}

pub struct Curve {
    pub name: String,
    pub colour: RGBColor,
    /// A limit rather than something that is compared.
    pub is_limit: bool,
    pub marker: Shape,
    pub points: Vec<Point>,
}

/// A value, and the worse one that the shade reaches to.
#[derive(Clone, Copy)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    pub worse: Option<f64>,
}

/// Beyond the outermost values, so that they do not lie on the frame.
const MARGIN: f64 = 1.3;
const SHADE: f64 = 0.15;

pub fn draw(path: &Path, plot: &Curves) -> Result<()> {
    on(path, plot).map_err(|error| anyhow!("cannot draw {}: {error}", path.display()))
}

fn on(path: &Path, plot: &Curves) -> Result<(), Box<dyn std::error::Error>> {
    let points = || plot.curves.iter().flat_map(|curve| &curve.points);
    let xs = extent(points().map(|it| it.x));
    let ys = extent(points().flat_map(|it| [Some(it.y), it.worse]).flatten());
    let root = SVGBackend::new(path, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(plot.title, (FONT, 20))
        .margin(14)
        .x_label_area_size(46)
        .y_label_area_size(76)
        .build_cartesian_2d((xs.0..xs.1).log_scale(), (ys.0..ys.1).log_scale())?;
    chart
        .configure_mesh()
        .x_desc(plot.x)
        .y_desc(plot.y)
        .x_label_formatter(&|x| number(*x))
        .y_label_formatter(&|y| number(*y))
        .light_line_style(TRANSPARENT)
        .label_style((FONT, 13))
        .draw()?;
    for curve in &plot.curves {
        draw_curve(&mut chart, curve)?;
    }
    chart
        .configure_series_labels()
        .legend_area_size(32)
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 14))
        .draw()?;
    Ok(root.present()?)
}

type Chart<'a, X, Y> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>;

fn draw_curve<'a, X, Y>(
    chart: &mut Chart<'a, X, Y>,
    curve: &Curve,
) -> Result<(), Box<dyn std::error::Error>>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let shade = shade(&curve.points);
    if !shade.is_empty() {
        chart.draw_series([Polygon::new(shade, curve.colour.mix(SHADE))])?;
    }
    let line = curve.points.iter().map(|it| (it.x, it.y));
    let style = curve.colour.stroke_width(2);
    if curve.is_limit {
        chart.draw_series(DashedLineSeries::new(line.clone(), 6, 4, style))?;
    } else {
        chart.draw_series(LineSeries::new(line.clone(), style))?;
    }
    let (shape, colour) = (curve.marker, curve.colour);
    chart.draw_series(line.map(|at| Marker { at, shape, colour }))?.label(&curve.name).legend(
        move |(x, y)| {
            EmptyElement::at((x, y))
                + PathElement::new([(0, 0), (24, 0)], style)
                + Marker { at: (12, 0), shape, colour }
        },
    );
    Ok(())
}

/// How points are marked, so that colour is not all that tells curves apart.
#[derive(Clone, Copy)]
pub enum Shape {
    Disc,
    Triangle,
    Circle,
    Square,
    Cross,
}

struct Marker<C> {
    at: C,
    shape: Shape,
    colour: RGBColor,
}

impl<'a, C> PointCollection<'a, C> for &'a Marker<C> {
    type Point = &'a C;
    type IntoIter = Once<&'a C>;

    fn point_iter(self) -> Self::IntoIter {
        once(&self.at)
    }
}

impl<C, D: DrawingBackend> Drawable<D> for Marker<C> {
    fn draw<I: Iterator<Item = BackendCoord>>(
        &self,
        mut places: I,
        to: &mut D,
        _: (u32, u32),
    ) -> Result<(), DrawingErrorKind<D::ErrorType>> {
        let Some((x, y)) = places.next() else { return Ok(()) };
        let (filled, thin) = (self.colour.filled(), self.colour.stroke_width(2));
        match self.shape {
            Shape::Disc => to.draw_circle((x, y), 4, &filled, true),
            Shape::Triangle => {
                to.fill_polygon([(x - 5, y + 4), (x + 5, y + 4), (x, y - 5)], &filled)
            }
            Shape::Circle => to.draw_circle((x, y), 4, &thin, false),
            Shape::Square => to.draw_rect((x - 4, y - 4), (x + 4, y + 4), &filled, true),
            Shape::Cross => {
                to.draw_line((x - 4, y - 4), (x + 4, y + 4), &thin)?;
                to.draw_line((x - 4, y + 4), (x + 4, y - 4), &thin)
            }
        }
    }
}

/// The area between the values and the worse ones, once around; empty if there are none.
fn shade(points: &[Point]) -> Vec<(f64, f64)> {
    let there = points.iter().map(|it| (it.x, it.y));
    let back = points.iter().rev().filter_map(|it| Some((it.x, it.worse?)));
    if points.iter().all(|it| it.worse.is_none()) {
        return Vec::new();
    }
    there.chain(back).collect()
}

/// From the least to the greatest, and a little more.
pub fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let is_shown = |value: &f64| *value > 0.0 && value.is_finite();
    let around = |(least, most): (f64, f64), value: f64| (least.min(value), most.max(value));
    let (least, most) = values.filter(is_shown).fold((f64::INFINITY, 0.0), around);
    if least > most {
        return (0.1, 10.0);
    }
    (least / MARGIN, most * MARGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shade_lies_between_the_values_and_the_worse_ones() {
        let point = |x, y, worse| Point { x, y, worse };
        let points = [point(1.0, 2.0, Some(3.0)), point(2.0, 4.0, Some(5.0))];
        assert_eq!(shade(&points), [(1.0, 2.0), (2.0, 4.0), (2.0, 5.0), (1.0, 3.0)]);
        assert!(shade(&[point(1.0, 2.0, None)]).is_empty());
    }

    #[test]
    fn what_a_logarithm_cannot_show_widens_nothing() {
        assert_eq!(
            extent([0.0, 10.0, f64::NAN, 100.0].into_iter()),
            (10.0 / MARGIN, 100.0 * MARGIN)
        );
        assert_eq!(extent(std::iter::empty()), (0.1, 10.0));
    }
}
