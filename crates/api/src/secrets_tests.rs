//! Tokens, codes and sessions.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn secrets() -> (tempfile::TempDir, Secrets, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("operator.token");
    let secrets = Secrets::open(&file).unwrap();
    let token = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    (dir, secrets, token)
}

fn session(secrets: &Secrets, now: TimestampMs) -> Bearer {
    let code = secrets.new_code(now).unwrap();
    match secrets.exchange(code.expose(), now).unwrap() {
        Exchange::Session(session) => session,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_token_is_private_made_once_and_an_operators() {
    let (dir, secrets, token) = secrets();
    let file = dir.path().join("operator.token");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let who = secrets.who(&token, TimestampMs(1)).unwrap();
    assert_eq!(who, Principal { role: Role::Operator, via: Via::Token });
    let again = Secrets::open(&file).unwrap();
    assert!(again.who(&token, TimestampMs(1)).is_some());
    assert_eq!(secrets.who(&token[1..], TimestampMs(1)), None);
    assert_eq!(secrets.who("", TimestampMs(1)), None);
}

#[test]
fn a_token_that_others_may_read_is_refused() {
    let (dir, _secrets, _token) = secrets();
    let file = dir.path().join("operator.token");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = Secrets::open(&file).unwrap_err();
    assert!(error.to_string().contains("others may read it"), "{error}");
}

#[test]
fn a_code_is_good_once() {
    let (_dir, secrets, _token) = secrets();
    let code = secrets.new_code(TimestampMs(5)).unwrap();
    assert!(matches!(
        secrets.exchange(code.expose(), TimestampMs(6)).unwrap(),
        Exchange::Session(_)
    ));
    assert!(matches!(secrets.exchange(code.expose(), TimestampMs(7)).unwrap(), Exchange::Wrong));
}

#[test]
fn a_code_is_no_token_and_expires() {
    let (_dir, secrets, _token) = secrets();
    let code = secrets.new_code(TimestampMs(0)).unwrap();
    assert_eq!(secrets.who(code.expose(), TimestampMs(1)), None);
    let late = secrets.exchange(code.expose(), TimestampMs(CODE_MS)).unwrap();
    assert!(matches!(late, Exchange::Wrong));
}

#[test]
fn guessing_codes_is_stopped_for_the_rest_of_the_minute() {
    let (_dir, secrets, _token) = secrets();
    let code = secrets.new_code(TimestampMs(0)).unwrap();
    for _ in 0..MAX_WRONG_CODES {
        assert!(matches!(secrets.exchange("guess", TimestampMs(1)).unwrap(), Exchange::Wrong));
    }
    let right = secrets.exchange(code.expose(), TimestampMs(2)).unwrap();
    assert!(matches!(right, Exchange::TooMany), "{right:?}");
    let later = secrets.exchange(code.expose(), TimestampMs(60_000)).unwrap();
    assert!(matches!(later, Exchange::Session(_)), "{later:?}");
}

#[test]
fn a_session_ends_by_idling_by_age_and_by_wish() {
    let (_dir, secrets, _token) = secrets();
    let idle = session(&secrets, TimestampMs(0));
    assert!(secrets.who(idle.expose(), TimestampMs(SESSION_IDLE_MS - 1)).is_some());
    assert_eq!(secrets.who(idle.expose(), TimestampMs(2 * SESSION_IDLE_MS)), None);

    let busy = session(&secrets, TimestampMs(0));
    let mut now = 0;
    while now + SESSION_IDLE_MS / 2 < SESSION_MS {
        now += SESSION_IDLE_MS / 2;
        assert!(secrets.who(busy.expose(), TimestampMs(now)).is_some());
    }
    assert_eq!(secrets.who(busy.expose(), TimestampMs(SESSION_MS)), None);

    let ended = session(&secrets, TimestampMs(0));
    secrets.end(ended.expose());
    assert_eq!(secrets.who(ended.expose(), TimestampMs(1)), None);
}

#[test]
fn one_more_session_than_fits_ends_the_one_that_idled_longest() {
    let (_dir, secrets, _token) = secrets();
    let first = session(&secrets, TimestampMs(0));
    let second = session(&secrets, TimestampMs(1));
    for n in 2..MAX_SESSIONS {
        session(&secrets, TimestampMs(n as u64));
    }
    secrets.who(first.expose(), TimestampMs(1_000)).unwrap();
    session(&secrets, TimestampMs(1_001));
    assert!(secrets.who(first.expose(), TimestampMs(1_002)).is_some());
    assert_eq!(secrets.who(second.expose(), TimestampMs(1_002)), None);
}

#[test]
fn no_secret_prints_itself() {
    let (_dir, secrets, token) = secrets();
    let session = session(&secrets, TimestampMs(0));
    let shown = format!("{secrets:?} {session:?}");
    assert!(!shown.contains(&token) && !shown.contains(session.expose()));
}
