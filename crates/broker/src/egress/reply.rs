//! What the guest is told about a refusal: status, code and the code's fixed sentence.
//!
//! Never the reason, which is for the record and may name what lies behind the rules.

use std::io;

use cofferdam_policy::{Refusal, RefusalCode};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

/// Header that carries the refusal code to the client.
pub const REFUSAL_HEADER: &str = "X-Cofferdam-Refusal";

/// Answers with a refusal. `bodiless`: the request's method was HEAD.
pub(super) async fn refuse<W: AsyncWrite + Unpin>(
    to: &mut W,
    refusal: &Refusal,
    close: bool,
    bodiless: bool,
) -> io::Result<()> {
    let body = format!("{}: {}\n", refusal.code, refusal.kind.message());
    let challenge = match refusal.kind {
        RefusalCode::Credential => "Proxy-Authenticate: Basic realm=\"cofferdam\"\r\n",
        _ => "",
    };
    let head = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         {REFUSAL_HEADER}: {}\r\n{challenge}Connection: {}\r\n\r\n{}",
        refusal.status,
        phrase(refusal.status),
        body.len(),
        refusal.code,
        if close { "close" } else { "keep-alive" },
        if bodiless { "" } else { &body },
    );
    to.write_all(head.as_bytes()).await?;
    to.flush().await
}

fn phrase(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        403 => "Forbidden",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        _ => "Refused",
    }
}
