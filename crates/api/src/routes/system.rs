//! The service itself: page, health, document, codes and sessions, engines.

use cofferdam_sandbox::EngineReport;

use crate::access::Role;
use crate::endpoint::{Call, Nothing};
use crate::openapi;
use crate::problem::Problem;
use crate::secrets::{CODE_MS, Exchange, SESSION_IDLE_MS};
use crate::types::{
    CodeExchange, Engine, EngineList, EngineProblem, Health, NewCode, NewSession, ServiceInfo,
};

/// Until the user interface is built in.
const PAGE: &str = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
    <title>Cofferdam</title>\n<h1>Cofferdam</h1>\n\
    <p>The service is up. This build has no user interface: use the command line, or the API, which \
    <a href=\"/api/v1/openapi.json\">describes itself</a>.</p>\n</html>\n";

pub(super) async fn page(_call: Call) -> Result<String, Problem> {
    Ok(PAGE.to_owned())
}

pub(super) async fn health(_call: Call) -> Result<Health, Problem> {
    Ok(Health { up: true })
}

pub(super) async fn openapi(_call: Call) -> Result<String, Problem> {
    Ok(openapi::document().to_string())
}

pub(super) async fn info(call: Call) -> Result<ServiceInfo, Problem> {
    let service = &call.service;
    Ok(ServiceInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: service.host.ledger().instance_id().await?.to_string(),
        live: service.live_count(),
        role: call.caller.map_or(Role::Viewer, |caller| caller.role),
        address: service.address.get().map(ToString::to_string),
    })
}

pub(super) async fn stop(call: Call<Nothing, Nothing>) -> Result<Nothing, Problem> {
    call.service.asked_to_stop.cancel();
    Ok(Nothing {})
}

fn no_entropy(error: std::io::Error) -> Problem {
    tracing::error!(%error, "no randomness");
    Problem::new(http::StatusCode::INTERNAL_SERVER_ERROR, "HOST-008", "no secret could be made")
}

pub(super) async fn new_code(call: Call<Nothing, Nothing>) -> Result<NewCode, Problem> {
    let code = call.service.secrets.new_code(call.now()).map_err(no_entropy)?;
    let url = call.service.address.get().map(|a| format!("http://{a}/#code={}", code.expose()));
    Ok(NewCode { code: code.expose().to_owned(), expires_in_ms: CODE_MS, url })
}

pub(super) async fn new_session(call: Call<Nothing, CodeExchange>) -> Result<NewSession, Problem> {
    match call.service.secrets.exchange(&call.body.code, call.now()).map_err(no_entropy)? {
        Exchange::Session(session) => Ok(NewSession {
            session: session.expose().to_owned(),
            role: Role::Operator,
            idle_ms: SESSION_IDLE_MS,
        }),
        Exchange::Wrong => Err(Problem::unauthorised()),
        Exchange::TooMany => Err(Problem::too_many("too many wrong codes: wait a minute")),
    }
}

pub(super) async fn end_session(call: Call<Nothing, Nothing>) -> Result<Nothing, Problem> {
    if let Some(bearer) = call.bearer() {
        call.service.secrets.end(bearer);
    }
    Ok(Nothing {})
}

pub(super) async fn engines(call: Call) -> Result<EngineList, Problem> {
    let reports = call.service.host.doctor().await;
    Ok(EngineList { engines: reports.into_iter().map(engine).collect() })
}

fn engine(report: EngineReport) -> Engine {
    let problems = report.problems.into_iter();
    Engine {
        engine: report.kind.to_string(),
        version: report.version,
        usable: report.usable,
        layers: report.layers,
        problems: problems.map(|p| EngineProblem { what: p.what, fix: p.fix }).collect(),
    }
}
