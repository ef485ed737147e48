//! Tries what must not work, before any agent runs: a target that no rule admits, through the door,
//! and ways around the door.
//!
//! Through the door the host sees the attempts itself; around it only this end can see them. A way
//! counts as open as soon as the kernel has a route for it, whether or not somebody answers. It must
//! never take something that it could not try for closed, send anything but the attempt, or wait
//! where there is no way out.

mod around;

use std::net::SocketAddr;

use cofferdam_wire::{Up, WallTest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::limits::WALL_DOOR;

/// Tries everything at once. `None` when nothing is to be tried.
pub(crate) async fn run(test: Option<&WallTest>, proxy: SocketAddr) -> Option<Up> {
    let test = test?.clone();
    let WallTest { target, proxy_authorization: token, host_port, host_socket } = test;
    let ask = |request: String| ask(proxy, request);
    let tunnel = ask(format!(
        "CONNECT {target}:443 HTTP/1.1\r\nHost: {target}:443\r\nProxy-Authorization: {token}\r\n\r\n"
    ));
    let plain = ask(format!(
        "GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: {token}\r\n\
         Connection: close\r\n\r\n"
    ));
    let around = spawn_blocking(move || around::open_ways(&target, host_port, host_socket));
    let (tunnel, plain, around) = tokio::join!(tunnel, plain, around);
    let open = around.unwrap_or_else(|error| vec![format!("could not be tried: {error}")]);
    Some(Up::WallTested { tunnel, plain, open })
}

/// Status of the proxy's answer.
async fn ask(proxy: SocketAddr, request: String) -> Option<u16> {
    let asking = async {
        #[expect(
            clippy::disallowed_methods,
            reason = "the guest's own proxy, as a client of the agent's would reach it"
        )]
        let mut proxy = TcpStream::connect(proxy).await.ok()?;
        proxy.write_all(request.as_bytes()).await.ok()?;
        let mut line = [0; "HTTP/1.1 403".len()];
        proxy.read_exact(&mut line).await.ok()?;
        std::str::from_utf8(&line).ok()?.strip_prefix("HTTP/1.1 ")?.parse().ok()
    };
    timeout(WALL_DOOR, asking).await.ok().flatten()
}
