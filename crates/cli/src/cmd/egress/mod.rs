//! `cofferdam egress`: what a run asked to connect to, what other rules would have said, and the check
//! of policy vectors.

mod check;
mod replay;
mod show;
mod source;
mod suggest;

use std::process::ExitCode;

use crate::app::App;
use crate::args::EgressAction;
use crate::error::CliError;

pub(crate) async fn egress(app: &App, action: EgressAction) -> Result<ExitCode, CliError> {
    match action {
        EgressAction::Show { run, refused } => show::show(app, &run, refused).await,
        EgressAction::Suggest { run, exact } => suggest::suggest(app, &run, exact).await,
        EgressAction::Replay { run, policy, fail_on_change } => {
            replay::replay(app, &run, &policy, fail_on_change).await
        }
        EgressAction::Check { file } => check::check_file(app, &file).await,
    }
}
