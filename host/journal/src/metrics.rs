//! Metrics that components count and measure in a run, for its operator.

use serde::{Deserialize, Serialize};

use crate::message::Labels;

/// Most series of a run, and of a call. Whoever makes a series of every value has no use for it.
pub const SERIES_MAX: usize = 64;
/// Most bytes of a name.
pub const METRIC_NAME_BYTES_MAX: usize = 64;
/// Most labels of a series.
pub const METRIC_LABELS_MAX: usize = 8;
/// Most bytes of a key or a value of those.
pub(crate) const METRIC_LABEL_BYTES_MAX: usize = 64;

/// True if a text is the name of a metric: `[a-z0-9_.]{1,64}`.
#[must_use]
pub fn is_metric_name(name: &str) -> bool {
    (1..=METRIC_NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_.".contains(&b))
}

/// The counts and measurements of a run, at most [`SERIES_MAX`] series, sorted by source, name and
/// labels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// The series.
    pub series: Vec<Series>,
    /// The number of samples that were not taken into account: over a bound, malformed, or another
    /// kind of measure under a name that has one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
}

/// The values that one component counts or measures under a name and some labels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The component, as in the log.
    pub source: String,
    /// The name.
    pub name: String,
    /// Keys and values that tell it from others of the name.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The values so far.
    #[serde(flatten)]
    pub measure: Measure,
}

/// The values of a series.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Measure {
    /// A counter.
    Counter {
        /// All that was added to it; it stays at its maximum.
        sum: u64,
    },
    /// Measurements. They are written as texts, so that what is read is to the last bit what was
    /// written.
    Values {
        /// The number of them.
        count: u64,
        /// All of them together.
        #[serde(with = "exact")]
        sum: f64,
        /// The least.
        #[serde(with = "exact")]
        min: f64,
        /// The greatest.
        #[serde(with = "exact")]
        max: f64,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the serialiser wants a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Measure {
    /// One measurement; `None` for one that is no number.
    #[must_use]
    pub fn value(value: f64) -> Option<Self> {
        value.is_finite().then_some(Self::Values { count: 1, sum: value, min: value, max: value })
    }

    /// Both together; `None` if they are of different kinds.
    fn plus(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Counter { sum }, Self::Counter { sum: more }) => {
                Some(Self::Counter { sum: sum.saturating_add(more) })
            }
            (
                Self::Values { count, sum, min, max },
                Self::Values { count: more, sum: others, min: least, max: greatest },
            ) => Some(Self::Values {
                count: count.saturating_add(more),
                sum: (sum + others).clamp(f64::MIN, f64::MAX),
                min: min.min(least),
                max: max.max(greatest),
            }),
            (Self::Counter { .. }, Self::Values { .. })
            | (Self::Values { .. }, Self::Counter { .. }) => None,
        }
    }
}

impl Metrics {
    /// True if nothing was counted, nor tried.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.series.is_empty() && self.dropped == 0
    }

    /// Takes what a guest counts or measures into account; `None` is no number.
    pub fn record(&mut self, source: &str, name: &str, labels: Labels, measure: Option<Measure>) {
        let long = |text: &String| text.len() > METRIC_LABEL_BYTES_MAX;
        let fits = is_metric_name(name)
            && labels.len() <= METRIC_LABELS_MAX
            && !labels.iter().any(|(key, value)| key.is_empty() || long(key) || long(value));
        match measure.filter(|_| fits) {
            Some(measure) => {
                let (source, name) = (source.to_owned(), name.to_owned());
                self.add(Series { source, name, labels, measure });
            }
            None => self.dropped = self.dropped.saturating_add(1),
        }
    }

    /// Adds what was counted and measured elsewhere.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.dropped = self.dropped.saturating_add(other.dropped);
        other.series.iter().for_each(|series| self.add(series.clone()));
    }

    fn add(&mut self, series: Series) {
        let found = self.series.binary_search_by(|known| known.place().cmp(&series.place()));
        match found {
            Ok(at) => match self.series[at].measure.plus(series.measure) {
                Some(both) => self.series[at].measure = both,
                None => self.dropped = self.dropped.saturating_add(1),
            },
            Err(at) if self.series.len() < SERIES_MAX => self.series.insert(at, series),
            Err(_) => self.dropped = self.dropped.saturating_add(1),
        }
    }
}

impl Series {
    fn place(&self) -> (&str, &str, &Labels) {
        (&self.source, &self.name, &self.labels)
    }
}

/// A number as the shortest text that is read as the same number.
mod exact {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        let value: f64 = text.parse().map_err(serde::de::Error::custom)?;
        match value.is_finite() {
            true => Ok(value),
            false => Err(serde::de::Error::custom("not a finite number")),
        }
    }
}

/// [`Metrics`] as they are shown: measurements are numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MetricsView {
    /// The series.
    pub series: Vec<SeriesView>,
    /// The values that were not taken into account.
    #[serde(skip_serializing_if = "is_zero")]
    pub dropped: u64,
}

/// A [`Series`] as it is shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeriesView {
    /// The component, as in the log.
    pub source: String,
    /// The name.
    pub name: String,
    /// Keys and values that tell it from others of the name.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The values so far.
    #[serde(flatten)]
    pub measure: MeasureView,
}

/// A [`Measure`] as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum MeasureView {
    /// A counter.
    Counter {
        /// All that was added to it.
        sum: u64,
    },
    /// Measurements.
    Values {
        /// The number of them.
        count: u64,
        /// All of them together.
        sum: f64,
        /// The least.
        min: f64,
        /// The greatest.
        max: f64,
    },
}

impl MetricsView {
    /// Those of a run; `None` if it has none.
    #[must_use]
    pub(crate) fn of(metrics: &Metrics) -> Option<Self> {
        let series = metrics.series.iter().map(|series| SeriesView {
            source: series.source.clone(),
            name: series.name.clone(),
            labels: series.labels.clone(),
            measure: match series.measure {
                Measure::Counter { sum } => MeasureView::Counter { sum },
                Measure::Values { count, sum, min, max } => {
                    MeasureView::Values { count, sum, min, max }
                }
            },
        });
        (!metrics.is_empty()).then(|| Self { series: series.collect(), dropped: metrics.dropped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: Option<Measure> = Some(Measure::Counter { sum: 2 });

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// A name, its labels, and what was measured.
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], Option<Measure>);

    fn metrics(records: &[Row<'_>]) -> Metrics {
        let mut metrics = Metrics::default();
        for (name, pairs, measure) in records {
            metrics.record("tool", name, labels(pairs), *measure);
        }
        metrics
    }

    #[test]
    fn what_has_the_same_name_and_labels_comes_together() {
        let value = Measure::value;
        let one = metrics(&[
            ("calls", &[], COUNT),
            ("calls", &[("to", "a")], COUNT),
            ("calls", &[], COUNT),
            ("wait_ms", &[], value(0.1)),
            ("wait_ms", &[], value(-3.0)),
        ]);
        let sums: Vec<_> = one.series.iter().map(|series| series.measure).collect();
        assert_eq!(
            sums,
            [
                Measure::Counter { sum: 4 },
                Measure::Counter { sum: 2 },
                Measure::Values { count: 2, sum: 0.1 - 3.0, min: -3.0, max: 0.1 },
            ]
        );
        let mut both = one.clone();
        both.merge(&one);
        assert_eq!(both.series[0].measure, Measure::Counter { sum: 8 });
        assert_eq!(both.series.len(), 3);
    }

    #[test]
    fn what_is_malformed_or_too_much_is_dropped_and_counted() {
        let long = "x".repeat(METRIC_NAME_BYTES_MAX + 1);
        for name in ["", "Calls", "a-b", "ä", "a b", long.as_str()] {
            assert_eq!(metrics(&[(name, &[], COUNT)]), Metrics { series: vec![], dropped: 1 });
        }
        assert_eq!(metrics(&[("a", &[("k", long.as_str())], COUNT)]).dropped, 1);
        assert_eq!(metrics(&[("a", &[("", "v")], COUNT)]).dropped, 1);
        for value in [f64::NAN, f64::INFINITY] {
            assert_eq!(metrics(&[("a", &[], Measure::value(value))]).dropped, 1);
        }
        assert_eq!(metrics(&[("a", &[], COUNT), ("a", &[], Measure::value(1.0))]).dropped, 1);
        let mut many = Metrics::default();
        for number in 0..SERIES_MAX + 5 {
            many.record("tool", &format!("n{number}"), Labels::new(), COUNT);
        }
        assert_eq!((many.series.len(), many.dropped), (SERIES_MAX, 5));
    }

    #[test]
    fn numbers_are_read_as_they_were_written_to_the_last_bit() {
        let mut all = Metrics::default();
        let edges = [0.1, 1.0 / 3.0, f64::MIN_POSITIVE, 5e-324, f64::MAX, -0.0, 1e300 * 1.7];
        for (number, value) in edges.into_iter().enumerate() {
            all.record("tool", &format!("n{number}"), Labels::new(), Measure::value(value));
        }
        all.record("tool", "n4", Labels::new(), Measure::value(f64::MAX));
        let text = serde_json::to_string(&all).expect("it can be written");
        assert_eq!(serde_json::from_str::<Metrics>(&text).expect("the same"), all);
    }
}
