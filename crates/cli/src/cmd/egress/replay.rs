//! `cofferdam egress replay`: what other rules would have decided about what a run asked for.

use std::path::Path;
use std::process::ExitCode;

use cofferdam_broker::egress::review::{self, Change, Replay};
use cofferdam_daemon::HostError;
use cofferdam_daemon::gatewayed;
use cofferdam_policy::{EgressPolicy, Services};
use serde_json::json;

use super::source::Source;
use crate::app::App;
use crate::error::CliError;
use crate::out::{Out, Tone, count, table};

pub(super) async fn replay(
    app: &App,
    run: &str,
    file: &Path,
    fail_on_change: bool,
) -> Result<ExitCode, CliError> {
    // The file first: what is wrong with it is told before a run is looked for.
    let config = App::config_at_named(file)?;
    let policy =
        EgressPolicy::load(&config.egress.allow, &config.egress.deny).map_err(HostError::from)?;
    let services = Services::load(config.services.clone()).map_err(HostError::from)?;
    let source = Source::of(app, run).await?;
    let decisions = review::decisions(&source.facts);
    let replayed = review::replay(&decisions, &policy, &services, &gatewayed(&source.spec));
    if app.out.json {
        app.out.json(&json!({
            "run": source.run,
            "over": source.over,
            "policy": file,
            "left_out_of_record": source.left_out(),
            "newly_admitted": replayed.count(Change::NewlyAdmitted),
            "newly_refused": replayed.count(Change::NewlyRefused),
            "still_admitted": replayed.count(Change::StillAdmitted),
            "still_refused": replayed.count(Change::StillRefused),
            "changes": replayed.changes(),
            "targets": replayed.targets,
        }));
    } else {
        print(app.out, &source, &replayed);
    }
    let failed = fail_on_change && replayed.changes();
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn print(out: Out, source: &Source, replayed: &Replay) {
    let mut rows = vec![
        ["CHANGE", "TARGET", "ASKED", "BEFORE", "UNDER THESE RULES"].map(str::to_owned).to_vec(),
    ];
    rows.extend(replayed.targets.iter().filter(|one| one.change.is_change()).map(|one| {
        vec![
            one.change.as_str().to_owned(),
            one.target.clone(),
            one.count.to_string(),
            one.before.clone(),
            one.after.clone(),
        ]
    }));
    if rows.len() == 1 {
        out.line("nothing would have been decided otherwise");
    } else {
        for (i, line) in table(&rows).into_iter().enumerate() {
            out.line(&if i == 0 { out.tone(Tone::Dim, &line) } else { line });
        }
    }
    out.line(&format!(
        "{} newly admitted, {} newly refused, {} still admitted, {} still refused",
        count(replayed.count(Change::NewlyAdmitted), "attempt"),
        replayed.count(Change::NewlyRefused),
        replayed.count(Change::StillAdmitted),
        replayed.count(Change::StillRefused),
    ));
    out.note("decided by text; addresses were not looked up");
    source.caveats().iter().for_each(|caveat| out.note(&format!("note: {caveat}")));
}
