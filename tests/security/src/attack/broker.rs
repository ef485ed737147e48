//! Through the proxy: no token, another run's token, names and addresses that no rule admits, and
//! every way of writing them that has fooled somebody.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::outcome::{Outcome, Twin};
use crate::promise::Promise::{P2, P3};
use crate::runner::parameter;
use crate::table::{Attempt, Place};

const fn row(name: &'static str, attack: fn() -> Outcome) -> Attempt {
    Attempt::new(name, "broker", P2, attack, admitted).at(Place::Product)
}

pub(crate) const TABLE: &[Attempt] = &[
    row("broker.no_token", || exchange(&connect("web.service.internal:80", ""))),
    row("broker.wrong_token", || with("web.service.internal:80", "run:AAAAAAAAAAAAAAAAAAAAAAAA")),
    row("broker.token_of_another_run", other_run),
    row("broker.unlisted_name", || target("unlisted.example.com:443")).case("S28"),
    row("broker.listed_name_other_port", || target("web.service.internal:81")),
    row("broker.name_below_listed", || target("a.web.service.internal:80")),
    row("broker.name_with_listed_suffix", || target("evilweb.service.internal:80")).case("S7"),
    row("broker.loopback_literal", || target(&format!("127.0.0.1:{}", parameter("host_port"))))
        .case("S32"),
    row("broker.loopback_name", || target(&format!("localhost:{}", parameter("host_port"))))
        .case("S32"),
    row("broker.loopback_decimal", || target(&format!("2130706433:{}", parameter("host_port"))))
        .case("S32"),
    row("broker.loopback_hex", || target(&format!("0x7f.1:{}", parameter("host_port"))))
        .case("S32"),
    row("broker.loopback_v6", || target(&format!("[::1]:{}", parameter("host_port")))).case("S31"),
    row("broker.loopback_mapped", || {
        target(&format!("[::ffff:127.0.0.1]:{}", parameter("host_port")))
    })
    .case("S32"),
    row("broker.unspecified", || target(&format!("0.0.0.0:{}", parameter("host_port"))))
        .case("S32"),
    row("broker.metadata", || target("169.254.169.254:80")),
    row("broker.metadata_plain", || {
        plain("http://169.254.169.254/latest/meta-data/", "169.254.169.254")
    })
    .case("S1"),
    row("broker.plain_unlisted", || plain("http://unlisted.example.com/", "unlisted.example.com"))
        .case("S1"),
    row("broker.plain_listed_host_header", || {
        plain("http://unlisted.example.com/", "web.service.internal")
    })
    .case("S10"),
    row("broker.nul_in_name", || target("unlisted.example.com\0.web.service.internal:80"))
        .case("S5"),
    row("broker.percent_in_name", || target("unlisted.example.com%23.web.service.internal:80"))
        .case("S7"),
    row("broker.user_info", || target("web.service.internal@unlisted.example.com:80")).case("S7"),
    row("broker.backslash", || target("unlisted.example.com\\.web.service.internal:80")).case("S7"),
    row("broker.trailing_dot_unlisted", || target("unlisted.example.com.:443")).case("S8"),
    row("broker.two_hosts", two_hosts).case("S10"),
    row("broker.smuggled_request", smuggle).case("S14"),
    row("broker.two_lengths", two_lengths).case("S14"),
    row("broker.websocket_upgrade", upgrade).case("S16"),
    row("broker.absolute_other_scheme", || {
        plain("ftp://web.service.internal/", "web.service.internal")
    }),
    row("broker.socks", socks),
    Attempt::new("gateway.without_placeholder", "gateway", P3, gateway_other_path, admitted)
        .at(Place::Product)
        .case("S43"),
    Attempt::new("gateway.connect_through_it", "gateway", P2, gateway_connect, admitted)
        .at(Place::Product)
        .case("S43"),
];

/// What the run's own environment says: `user:token`.
fn own_token() -> String {
    let text =
        ["http_proxy", "HTTP_PROXY"].iter().find_map(|n| std::env::var(n).ok()).unwrap_or_default();
    text.split_once("//")
        .and_then(|(_, rest)| rest.split_once('@'))
        .map(|(token, _)| token.to_owned())
        .unwrap_or_default()
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let letter = LETTERS[(word >> (18 - 6 * index) & 63) as usize];
            out.push(if index <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    out
}

fn authorisation(token: &str) -> String {
    if token.is_empty() {
        String::new()
    } else {
        format!("Proxy-Authorization: Basic {}\r\n", base64(token.as_bytes()))
    }
}

fn connect(authority: &str, token: &str) -> String {
    format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{}\r\n", authorisation(token))
}

fn send(port: u16, request: &[u8]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(6)))?;
    stream.write_all(request)?;
    let mut answer = vec![0; 4096];
    let n = stream.read(&mut answer)?;
    answer.truncate(n);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Through when the answer is a success; refused when it is an error of ours or a closed connection.
fn judge(answer: std::io::Result<String>) -> Outcome {
    match answer {
        Ok(text) => {
            let status = text.split(' ').nth(1).unwrap_or("closed").to_owned();
            Outcome::through_if(
                status.starts_with('1') || status.starts_with('2'),
                format!("status {status}"),
            )
        }
        Err(error) => match error.kind() {
            std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::UnexpectedEof => {
                Outcome::Refused("closed".to_owned())
            }
            kind => Outcome::Through(format!("no answer: {kind}")),
        },
    }
}

fn exchange(request: &str) -> Outcome {
    judge(send(3128, request.as_bytes()))
}

fn with(authority: &str, token: &str) -> Outcome {
    exchange(&connect(authority, token))
}

fn target(authority: &str) -> Outcome {
    with(authority, &own_token())
}

fn plain(url: &str, host: &str) -> Outcome {
    exchange(&format!(
        "GET {url} HTTP/1.1\r\nHost: {host}\r\n{}Connection: close\r\n\r\n",
        authorisation(&own_token())
    ))
}

/// The twin of all of them: what the rule names is reached, and answers.
fn admitted() -> Twin {
    let request = connect("web.service.internal:80", &own_token());
    let answer = send(3128, request.as_bytes()).map_err(|error| error.to_string())?;
    if answer.contains(" 200 ") {
        Ok(())
    } else {
        Err(answer.lines().next().unwrap_or_default().to_owned())
    }
}

fn other_run() -> Outcome {
    match parameter("other_token") {
        token if token.is_empty() => Outcome::Refused("no token named".to_owned()),
        token => with("web.service.internal:80", &format!("run:{token}")),
    }
}

fn two_hosts() -> Outcome {
    exchange(&format!(
        "GET http://web.service.internal/ HTTP/1.1\r\nHost: web.service.internal\r\nHost: unlisted.example.com\r\n{}\r\n",
        authorisation(&own_token())
    ))
}

fn smuggle() -> Outcome {
    exchange(&format!(
        "POST http://web.service.internal/ HTTP/1.1\r\nHost: web.service.internal\r\n{}Content-Length: 4\r\n\
         Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://unlisted.example.com/ HTTP/1.1\r\n\r\n",
        authorisation(&own_token())
    ))
}

fn two_lengths() -> Outcome {
    exchange(&format!(
        "POST http://web.service.internal/ HTTP/1.1\r\nHost: web.service.internal\r\n{}Content-Length: 4\r\n\
         Content-Length: 40\r\n\r\nabcd",
        authorisation(&own_token())
    ))
}

fn upgrade() -> Outcome {
    exchange(&format!(
        "GET http://unlisted.example.com/ HTTP/1.1\r\nHost: unlisted.example.com\r\n{}Connection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        authorisation(&own_token())
    ))
}

fn socks() -> Outcome {
    match send(3128, b"\x05\x01\x00") {
        Ok(text) => Outcome::through_if(
            text.starts_with('\u{5}'),
            text.chars().take(20).collect::<String>(),
        ),
        Err(error) => Outcome::Refused(error.kind().to_string()),
    }
}

fn gateway_other_path() -> Outcome {
    // The gateway speaks to one provider about one model; this is neither.
    judge(send(
        3129,
        b"GET /v1/organizations/api_keys HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    ))
}

fn gateway_connect() -> Outcome {
    judge(send(3129, connect("unlisted.example.com:443", &own_token()).as_bytes()))
}
