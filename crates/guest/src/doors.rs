//! The loopback doors: each connection to the proxy or model port becomes a stream to the host.
//!
//! Carries bytes only. The guest never parses them, decides about them, or keeps more than a buffer
//! of them; all that is the host's.

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use cofferdam_link::Link;
use cofferdam_wire::StreamOpen;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::limits::{DOOR_BUFFER, MODEL_CONNECTIONS, PROXY_CONNECTIONS};
use crate::places::Places;
use crate::talk;

/// The open doors. Dropping them shuts them and cuts every connection.
#[derive(Debug)]
pub(crate) struct Doors(#[expect(dead_code, reason = "held for its drop")] JoinSet<()>);

/// Opens both doors.
pub(crate) async fn open(places: &Places, link: &Link) -> io::Result<Doors> {
    let [proxy, model] = places.ports;
    let proxy = TcpListener::bind((Ipv4Addr::LOCALHOST, proxy)).await?;
    let model = TcpListener::bind((Ipv4Addr::LOCALHOST, model)).await?;
    if let Some(file) = &places.ports_file {
        tell_ports(file, &proxy, &model)?;
    }
    let mut doors = JoinSet::new();
    doors.spawn(serve(proxy, link.clone(), StreamOpen::Egress, PROXY_CONNECTIONS));
    doors.spawn(serve(model, link.clone(), StreamOpen::Model, MODEL_CONNECTIONS));
    Ok(Doors(doors))
}

fn tell_ports(file: &Path, proxy: &TcpListener, model: &TcpListener) -> io::Result<()> {
    std::fs::write(file, format!("{} {}", proxy.local_addr()?.port(), model.local_addr()?.port()))
}

async fn serve(listener: TcpListener, link: Link, kind: StreamOpen, limit: usize) {
    let slots = Arc::new(Semaphore::new(limit));
    let mut connections = JoinSet::new();
    loop {
        // The semaphore is never closed.
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        let Ok((connection, _)) = listener.accept().await else {
            // Out of descriptors, most likely; a connection that ends makes room.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let (link, kind) = (link.clone(), kind.clone());
        connections.spawn(async move {
            carry(connection, &link, &kind).await;
            drop(slot);
        });
    }
}

/// Carries both ways, each with its own end, until both have ended or one has failed.
async fn carry(mut connection: TcpStream, link: &Link, kind: &StreamOpen) {
    let Ok(mut stream) = talk::open_stream(link, kind).await else {
        let _ = connection.set_zero_linger();
        return;
    };
    let _ = connection.set_nodelay(true);
    let carried =
        copy_bidirectional_with_sizes(&mut connection, &mut stream, DOOR_BUFFER, DOOR_BUFFER).await;
    if carried.is_err() {
        // The agent's end must see a reset: a plain end would pass for a whole answer.
        let _ = connection.set_zero_linger();
    }
}
