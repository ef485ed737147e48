//! `cofferdam logs`: the run's events and the agent's output, as stored; `-f` goes on until the end.

use std::process::ExitCode;
use std::time::Duration;

use cofferdam_daemon::text;
use cofferdam_ledger::{EventBody, StoredEvent};
use serde_json::{Value, json};

use crate::app::App;
use crate::cmd::show::{LOST, fact_line};
use crate::error::CliError;
use crate::lines::LineJoiner;
use crate::out::Tone;

const PAGE: u32 = 500;
const LOOK_EVERY: Duration = Duration::from_millis(300);

pub(crate) async fn logs(
    app: &App,
    run: &str,
    follow: bool,
    output: bool,
) -> Result<ExitCode, CliError> {
    let host = app.host().await?;
    let id = app.resolve(&host, run).await?;
    let mut after = 0;
    let mut joiner = LineJoiner::default();
    loop {
        // Asked before reading: events that come between the two are read in the next round.
        let over = host.ledger().run(&id).await?.state.name().is_terminal();
        let lost = !over && host.lost().await?.contains(&id);
        loop {
            let events = host.ledger().events(&id, after, PAGE).await?;
            let Some(last) = events.last() else { break };
            after = last.seq;
            for event in &events {
                print(app, event, output, &mut joiner);
            }
        }
        if lost {
            app.out.note(LOST);
        }
        if over || lost || !follow {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::from(crate::error::CANCELLED)),
        }
    }
}

fn print(app: &App, event: &StoredEvent, output: bool, joiner: &mut LineJoiner) {
    if app.out.json {
        let body = body_json(&event.body);
        if !output || matches!(event.body, EventBody::Output { .. }) {
            app.out
                .line(&json!({ "seq": event.seq, "at_ms": event.at, "event": body }).to_string());
        }
        return;
    }
    if !matches!(event.body, EventBody::Output { .. }) {
        for line in joiner.rest() {
            app.out.line(&format!("         │ {line}"));
        }
    }
    match &event.body {
        EventBody::Output { bytes, .. } if output => {
            app.out.raw(text::block(&String::from_utf8_lossy(bytes)).as_bytes());
        }
        EventBody::Output { stream, bytes } => {
            let stderr = *stream == cofferdam_ledger::OutputStream::Stderr;
            for line in joiner.feed(stderr, &text::block(&String::from_utf8_lossy(bytes))) {
                app.out.line(&format!("         │ {line}"));
            }
        }
        EventBody::Transition { event: happened, state } if !output => {
            app.out.line(&format!(
                "{} {:<18} {}",
                time(app, event.at.0),
                state.as_str(),
                happened.name()
            ));
        }
        EventBody::Fact(fact) if !output => {
            let (kind, line) = fact_line(fact);
            app.out.line(format!("{} {kind:<18} {line}", time(app, event.at.0)).trim_end());
        }
        EventBody::Transition { .. } | EventBody::Fact(_) => {}
    }
}

fn body_json(body: &EventBody) -> Value {
    match body {
        EventBody::Transition { event, state } => {
            json!({ "kind": "transition", "state": state, "transition": event })
        }
        EventBody::Fact(fact) => json!({ "kind": "fact", "fact": fact }),
        EventBody::Output { stream, bytes } => {
            let stream = match stream {
                cofferdam_ledger::OutputStream::Stdout => "stdout",
                cofferdam_ledger::OutputStream::Stderr => "stderr",
            };
            json!({ "kind": "output", "stream": stream, "text": String::from_utf8_lossy(bytes) })
        }
    }
}

fn time(app: &App, ms: u64) -> String {
    let shown = i64::try_from(ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| "--:--:--".to_owned(), |t| t.strftime("%H:%M:%S").to_string());
    app.out.tone(Tone::Dim, &shown)
}
