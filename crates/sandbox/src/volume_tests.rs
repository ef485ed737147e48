//! Counting a volume.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

fn far() -> Stop {
    Stop::at(u64::MAX, u64::MAX)
}

#[test]
fn blocks_count_and_lengths_do_not() {
    let temp = tempfile::tempdir().unwrap();
    let empty = count(temp.path(), &far()).unwrap();
    let sparse = fs::File::create(temp.path().join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    fs::write(temp.path().join("full"), vec![7; 1 << 20]).unwrap();
    fs::File::open(temp.path().join("full")).unwrap().sync_all().unwrap();
    let seen = count(temp.path(), &far()).unwrap();
    assert_eq!(seen.files, 3);
    let grown = seen.bytes - empty.bytes;
    assert!((1 << 20..2 << 20).contains(&grown), "{grown}");
    assert!(seen.whole);
}

#[test]
fn a_file_with_two_names_counts_once() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("one"), vec![7; 1 << 20]).unwrap();
    let before = count(temp.path(), &far()).unwrap();
    fs::hard_link(temp.path().join("one"), temp.path().join("two")).unwrap();
    assert_eq!(count(temp.path(), &far()).unwrap(), before);
}

#[test]
fn links_lead_nowhere() {
    let temp = tempfile::tempdir().unwrap();
    let (inside, outside) = (temp.path().join("in"), temp.path().join("out"));
    fs::create_dir(&inside).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("big"), vec![7; 1 << 20]).unwrap();
    symlink(&outside, inside.join("link")).unwrap();
    let seen = count(&inside, &far()).unwrap();
    assert_eq!(seen.files, 2);
    assert!(seen.bytes < 1 << 20);
    assert!(count(&inside.join("link"), &far()).is_err(), "nor does a link in its place");
}

#[test]
fn any_depth_is_counted_with_few_descriptors() {
    let temp = tempfile::tempdir().unwrap();
    let mut at = rustix::fs::open(temp.path(), DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..1_000 {
        rustix::fs::mkdirat(&at, c"d", Mode::RWXU).unwrap();
        at = openat(&at, c"d", DIRECTORY, Mode::empty()).unwrap();
    }
    let seen = count(temp.path(), &far()).unwrap();
    assert_eq!(seen.files, 1_001);
    assert!(seen.whole);
    drop(at);
    tree::remove(temp.path()).unwrap();
}

#[test]
fn a_tree_made_to_be_uncountable_is_said_to_be() {
    let temp = tempfile::tempdir().unwrap();
    let deep = ["d"; COUNT_DEPTH - 1].join("/");
    for n in 0..=DEEP_DIRECTORIES {
        fs::create_dir_all(temp.path().join(&deep).join(n.to_string())).unwrap();
    }
    assert!(!count(temp.path(), &far()).unwrap().whole);
}

#[test]
fn closed_directory_is_counted_and_left_as_it_was() {
    let temp = tempfile::tempdir().unwrap();
    let closed = temp.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("file"), "x").unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    // Root needs no mode; the way of an ordinary user is taken by itself.
    let parent = rustix::fs::open(temp.path(), DIRECTORY, Mode::empty()).unwrap();
    assert!(open_closed(&parent, &c"closed".to_owned()).is_some());
    assert_eq!(fs::metadata(&closed).unwrap().permissions().mode() & 0o777, 0);
    let seen = count(temp.path(), &far()).unwrap();
    assert_eq!((seen.files, seen.whole), (3, true));
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn count_ends_at_its_bound_and_when_nobody_waits() {
    let temp = tempfile::tempdir().unwrap();
    for n in 0..100 {
        fs::write(temp.path().join(n.to_string()), "x").unwrap();
    }
    let seen = count(temp.path(), &Stop::at(u64::MAX, 10)).unwrap();
    assert_eq!((seen.files, seen.whole), (11, true));
    let stop = far();
    drop(stop.guard());
    assert!(count(temp.path(), &stop).unwrap().files < 3);
}

#[test]
fn missing_volume_takes_nothing() {
    let seen = count(Path::new("/nonexistent/cofferdam/work"), &far()).unwrap();
    assert_eq!(seen, WorkUse { whole: true, ..WorkUse::default() });
}
