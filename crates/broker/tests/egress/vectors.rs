//! Every vector of the corpus through the real door: as labelled, byte by byte, and with labels inverted.

use cofferdam_broker::egress::check::{Expect, Pace, Vector, check_vector, read_vectors};
use futures::StreamExt as _;

fn vectors() -> Vec<Vector> {
    read_vectors(include_str!("../corpora/egress.jsonl")).unwrap()
}

#[tokio::test]
async fn every_vector_and_its_twin_end_as_labelled() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 130);
    let results: Vec<_> =
        futures::stream::iter(&vectors).map(check_vector).buffer_unordered(32).collect().await;
    let wrong: Vec<_> = results.iter().filter(|result| !result.ok).collect();
    assert!(wrong.is_empty(), "{} wrong: {wrong:#?}", wrong.len());
    // Where another verdict would be accepted too, the label is still what is aimed at.
    let strict = vectors
        .iter()
        .filter(|v| results.iter().any(|r| r.id == v.id && (r.got == "allow") == (v.status == 200)))
        .count();
    assert_eq!(strict, vectors.len());
}

#[tokio::test]
async fn answers_do_not_depend_on_how_the_bytes_arrive() {
    let mut vectors = vectors();
    for vector in &mut vectors {
        vector.request.pace.get_or_insert(Pace { chunk: 1, interval_ms: 0, max_s: 200 });
    }
    let results: Vec<_> =
        futures::stream::iter(&vectors).map(check_vector).buffer_unordered(32).collect().await;
    let wrong: Vec<_> = results.iter().filter(|result| !result.ok).collect();
    assert!(wrong.is_empty(), "{} wrong: {wrong:#?}", wrong.len());
}

/// The check itself must be able to fail: each label turned round must be found wrong.
#[tokio::test]
async fn a_wrong_label_is_found() {
    let mut vectors = vectors();
    for vector in &mut vectors {
        vector.also_ok = None;
        vector.expect = match vector.expect {
            Expect::Allow => Expect::Refuse,
            Expect::Refuse => Expect::Allow,
        };
    }
    let results: Vec<_> =
        futures::stream::iter(&vectors).map(check_vector).buffer_unordered(32).collect().await;
    let missed: Vec<_> = results.iter().filter(|result| result.ok).collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn a_file_with_a_broken_line_is_refused_by_its_number() {
    let text = include_str!("../corpora/egress.jsonl");
    let two: String = text.lines().take(1).chain(["{}"]).collect::<Vec<_>>().join("\n");
    assert_eq!(read_vectors(&two).unwrap_err().line, 2);
}
