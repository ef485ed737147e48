//! Errors at the command's edge: code, words, causes, way out, and one of the documented exit codes.

use std::process::ExitCode;

use cofferdam_daemon::HostError;
use cofferdam_ledger::LedgerError;
use serde_json::json;

use crate::out::{Out, Tone};

/// Wrong use or configuration.
pub(crate) const USAGE: u8 = 2;
/// Refused before anything started.
pub(crate) const REFUSED: u8 = 3;
/// Two things do not fit together; nothing was changed.
pub(crate) const CONFLICT: u8 = 4;
/// There is no such thing.
pub(crate) const NOT_FOUND: u8 = 5;
/// A record does not verify.
pub(crate) const NOT_VERIFIED: u8 = 6;
/// A person cancelled.
pub(crate) const CANCELLED: u8 = 130;

/// An error with everything that a person or a program needs.
#[derive(Debug)]
pub(crate) struct CliError {
    code: Option<String>,
    message: String,
    causes: Vec<String>,
    hint: Option<String>,
    exit: u8,
}

impl CliError {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: None, message: message.into(), causes: Vec::new(), hint: None, exit: USAGE }
    }

    pub(crate) fn not_found(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), exit: NOT_FOUND, ..Self::usage(message) }
    }

    pub(crate) fn coded(
        code: &str,
        message: impl Into<String>,
        hint: Option<String>,
        exit: u8,
    ) -> Self {
        Self { code: Some(code.to_owned()), hint, exit, ..Self::usage(message) }
    }

    /// Code, way out and exit code for an error that has its words already.
    pub(crate) fn with(mut self, code: &str, hint: Option<String>, exit: u8) -> Self {
        (self.code, self.hint, self.exit) = (Some(code.to_owned()), hint, exit);
        self
    }

    /// What lies beneath, outermost first.
    pub(crate) fn because(mut self, causes: Vec<String>) -> Self {
        self.causes = causes;
        self
    }

    pub(crate) fn other(error: impl std::error::Error) -> Self {
        Self { causes: causes(&error), exit: 1, ..Self::usage(error.to_string()) }
    }
}

fn causes(error: &dyn std::error::Error) -> Vec<String> {
    let mut list = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        list.push(cause.to_string());
        next = cause.source();
    }
    list
}

impl From<HostError> for CliError {
    fn from(error: HostError) -> Self {
        let exit = match &error {
            HostError::Config(_)
            | HostError::NoTask
            | HostError::NoVariable(_)
            | HostError::Rule(_)
            | HostError::Service(_) => USAGE,
            HostError::Workspace(_)
            | HostError::Sandbox(_)
            | HostError::Gateway(_)
            | HostError::NoKey { .. }
            | HostError::PartMissing { .. }
            | HostError::ShellShared { .. }
            | HostError::DataInCheckout(_) => REFUSED,
            HostError::Ledger(LedgerError::NoSuchRun { .. } | LedgerError::Ambiguous { .. })
            | HostError::NoCommits(_) => NOT_FOUND,
            HostError::NotOver(_) => CONFLICT,
            _ => 1,
        };
        Self {
            code: Some(error.code().to_owned()),
            message: error.to_string(),
            causes: causes(&error),
            hint: error.hint(),
            exit,
        }
    }
}

impl From<LedgerError> for CliError {
    fn from(error: LedgerError) -> Self {
        HostError::from(error).into()
    }
}

/// Prints it and gives the exit code.
pub(crate) fn report(out: Out, error: &CliError) -> ExitCode {
    if out.json {
        let value = json!({ "error": {
            "code": error.code, "message": error.message, "causes": error.causes, "hint": error.hint,
        }});
        out.note(&value.to_string());
        return ExitCode::from(error.exit);
    }
    let label = match &error.code {
        Some(code) => format!("error[{code}]:"),
        None => "error:".to_owned(),
    };
    out.note(&format!("{} {}", out.note_tone(Tone::Bad, &label), error.message));
    for cause in &error.causes {
        out.note(&format!("  because: {cause}"));
    }
    if let Some(hint) = &error.hint {
        out.note(&format!("  hint: {hint}"));
    }
    if let Some(code) = &error.code {
        let page = code.split('-').next().unwrap_or(code).to_ascii_lowercase();
        out.note(&format!("  more: docs/errors/{page}.md, section {code}"));
    }
    ExitCode::from(error.exit)
}
