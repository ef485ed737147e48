//! `cofferdam diff` and `cofferdam apply`: look at what came back, take it over.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cofferdam_daemon::HostError;
use cofferdam_run::{ObjectId, RunId};
use cofferdam_workspace::{
    Applied, ApplyRequest, Change, Checkout, Diff, DiffForm, DiffRequest, FileChange,
};
use serde_json::json;

use crate::app::App;
use crate::cmd::show;
use crate::error::{CONFLICT, CliError};
use crate::out::{Out, Tone, count, table};

/// The run, its base and the checkout that holds its commits.
struct Review {
    id: RunId,
    base: ObjectId,
    checkout: Checkout,
}

/// Finds the run's commits: in the current checkout when it has them, else in the one that the run was
/// started on.
async fn review(app: &App, run: &str) -> Result<Review, CliError> {
    let host = app.host().await?;
    let id = app.resolve(&host, run).await?;
    let record =
        show::stored_record(&host, &id).await?.ok_or_else(|| HostError::NotOver(id.clone()))?;
    if !show::has_commits(&record) {
        return Err(HostError::NoCommits(id).into());
    }
    let (Some(base), Some(started)) = (show::base(&record), show::checkout(&record)) else {
        return Err(HostError::Internal(format!("the record of {id} names no base")).into());
    };
    let place =
        current_checkout(Path::new(&started)).await.unwrap_or_else(|| PathBuf::from(&started));
    let checkout = Checkout::open(&place).await.map_err(HostError::from)?;
    Ok(Review { id, base, checkout })
}

/// The current directory's checkout, when it shares the run's repository (a linked worktree, say).
async fn current_checkout(started: &Path) -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    let mine = Checkout::open(&here).await.ok()?;
    let theirs = Checkout::open(started).await.ok()?;
    (mine.common_dir() == theirs.common_dir()).then(|| mine.top().to_path_buf())
}

pub(crate) async fn diff(app: &App, run: &str, stat: bool) -> Result<ExitCode, CliError> {
    let review = review(app, run).await?;
    let form = if stat { DiffForm::Files } else { DiffForm::Patch };
    let request = DiffRequest { base: review.base, form };
    let diff = cofferdam_workspace::diff(&review.checkout, &review.id, request)
        .await
        .map_err(HostError::from)?;
    if app.out.json {
        app.out.json(&json!(diff));
    } else {
        print(app.out, &diff);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(out: Out, diff: &Diff) {
    let rows: Vec<Vec<String>> = diff.files.iter().map(row).collect();
    for (line, file) in table(&rows).iter().zip(&diff.files) {
        out.line(&if file.risks.is_empty() { line.clone() } else { out.tone(Tone::Warn, line) });
    }
    if diff.files_left_out > 0 {
        out.line(&format!("… and {} more", count(diff.files_left_out, "file")));
    }
    out.line(&format!(
        "{} changed, {} added, {} removed",
        count(diff.files.len() as u64 + diff.files_left_out, "file"),
        count(diff.added, "line"),
        count(diff.removed, "line"),
    ));
    if let Some(patch) = &diff.patch {
        out.line("");
        for line in patch.lines() {
            let tone = match line.as_bytes().first() {
                Some(b'+') => Some(Tone::Good),
                Some(b'-') => Some(Tone::Bad),
                Some(b'@') => Some(Tone::Dim),
                _ => None,
            };
            out.line(&tone.map_or_else(|| line.to_owned(), |t| out.tone(t, line)));
        }
        if diff.patch_cut {
            out.line("… the patch is longer and was cut here; use git diff to see all of it");
        }
    }
}

fn row(file: &FileChange) -> Vec<String> {
    let change = match file.change {
        Change::Added => "added",
        Change::Modified => "modified",
        Change::Deleted => "deleted",
        Change::Renamed => "renamed",
        Change::TypeChanged => "type changed",
    };
    let lines = match (file.added, file.removed) {
        (Some(added), Some(removed)) => format!("+{added} -{removed}"),
        _ => "binary".to_owned(),
    };
    let mut path = match &file.from {
        Some(from) => format!("{from} → {}", file.path),
        None => file.path.clone(),
    };
    if !file.risks.is_empty() {
        let words: Vec<&str> = file.risks.iter().map(|r| r.words()).collect();
        path.push_str(&format!("   RISK: {}", words.join("; ")));
    }
    vec![change.to_owned(), lines, path]
}

pub(crate) async fn apply(
    app: &App,
    run: &str,
    as_branch: Option<String>,
) -> Result<ExitCode, CliError> {
    let review = review(app, run).await?;
    let request = ApplyRequest { base: review.base.clone(), as_branch };
    let applied = cofferdam_workspace::apply(&review.checkout, &review.id, request)
        .await
        .map_err(|e| CliError::coded(e.code(), e.to_string(), Some(e.hint()), CONFLICT))?;
    if app.out.json {
        app.out.json(
            &json!({ "run": review.id, "checkout": review.checkout.top(), "applied": applied }),
        );
        return Ok(ExitCode::SUCCESS);
    }
    match &applied {
        Applied::Picked { head, commits, already, flattened_merges, fast_forward, squashed } => {
            let short: String = head.as_str().chars().take(10).collect();
            let how = match (fast_forward, squashed) {
                (true, _) => ", with their ids",
                (_, true) => ", as one commit because the run had rewritten history",
                _ => "",
            };
            app.out.line(&format!("applied {}{how}; HEAD is {short}", count(*commits, "commit")));
            if *already > 0 {
                app.out.line(&format!("{} there already", count(*already, "commit")));
            }
            if *flattened_merges > 0 {
                app.out.line(&format!(
                    "{} became ordinary commits",
                    count(*flattened_merges, "merge")
                ));
            }
        }
        Applied::AlreadyApplied => app.out.line("nothing to do: all of it is there already"),
        Applied::Nothing => app.out.line("nothing to do: the run changed nothing"),
        Applied::Branch { name } => app.out.line(&format!("branch {name} is at the run's commits")),
    }
    Ok(ExitCode::SUCCESS)
}
