//! The provider's certificate is verified, and its address is vetted.

use std::sync::Arc;

use cofferdam_broker::gateway::{ModelGateway, codes};
use cofferdam_broker::log::MemoryLog;
use cofferdam_run::spec::Dialect;
use cofferdam_testkit::model::{ModelServer, Script, Turn};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tokio_rustls::TlsAcceptor;

use crate::support::{code, config, door_to, question};

// Made for these tests alone: an authority, and a certificate of it for 127.0.0.1.
const AUTHORITY: &[u8] = include_bytes!("tls/authority.der");
const CERTIFICATE: &[u8] = include_bytes!("tls/server.der");
const CERTIFICATE_KEY: &[u8] = include_bytes!("tls/server.key.der");

/// The scripted server behind TLS; its base URL.
async fn tls_front(server: Arc<ModelServer>) -> String {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from(CERTIFICATE)],
            PrivateKeyDer::from(PrivatePkcs8KeyDer::from(CERTIFICATE_KEY)),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, server) = (acceptor.clone(), Arc::clone(&server));
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    server.serve(stream).await;
                }
            });
        }
    });
    format!("https://{address}")
}

fn server() -> Arc<ModelServer> {
    Arc::new(ModelServer::start(Script::new([Turn::say("over TLS")])).unwrap())
}

#[tokio::test]
async fn a_configured_authority_is_trusted_and_the_handshake_is_paid_once() {
    let server = server();
    let url = tls_front(Arc::clone(&server)).await;
    let door = door_to(&url, Dialect::OpenaiChat, |config| {
        config.roots = vec![CertificateDer::from(AUTHORITY)];
    })
    .await;
    for _ in 0..3 {
        let reply = door.ask(true, &question(Dialect::OpenaiChat, true, json!({}))).await;
        assert!(reply.status == 200 && reply.text.contains("over TLS"), "{}", reply.text);
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn an_unknown_authority_is_not_trusted() {
    let server = server();
    let url = tls_front(Arc::clone(&server)).await;
    let door = door_to(&url, Dialect::OpenaiChat, |_| {}).await;
    let reply = door.ask(false, &question(Dialect::OpenaiChat, false, json!({}))).await;
    assert_eq!(
        (reply.status, code(Dialect::OpenaiChat, &reply.json())),
        (502, codes::UNREACHABLE.to_owned())
    );
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_certificate_for_another_name_is_not_trusted() {
    let server = server();
    let url = tls_front(Arc::clone(&server)).await.replace("127.0.0.1", "localhost");
    let door = door_to(&url, Dialect::OpenaiChat, |config| {
        config.roots = vec![CertificateDer::from(AUTHORITY)];
    })
    .await;
    let reply = door.ask(false, &question(Dialect::OpenaiChat, false, json!({}))).await;
    assert_eq!(code(Dialect::OpenaiChat, &reply.json()), codes::UNREACHABLE);
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_provider_that_is_not_local_is_never_found_on_loopback() {
    let server = server();
    let url = tls_front(Arc::clone(&server)).await;
    let log = Arc::new(MemoryLog::default());
    let mut literal = config(Dialect::OpenaiChat, &url, &log);
    literal.local = false;
    assert_eq!(ModelGateway::new(literal).unwrap_err().code(), "MODEL-020");
    let url = url.replace("127.0.0.1", "localhost");
    {
        let door = door_to(&url, Dialect::OpenaiChat, |config| {
            config.local = false;
            config.roots = vec![CertificateDer::from(AUTHORITY)];
        })
        .await;
        let reply = door.ask(false, &question(Dialect::OpenaiChat, false, json!({}))).await;
        assert_eq!(code(Dialect::OpenaiChat, &reply.json()), codes::UNREACHABLE, "{url}");
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn plain_http_needs_a_local_provider() {
    let log = Arc::new(MemoryLog::default());
    let mut plain = config(Dialect::Anthropic, "http://api.anthropic.com", &log);
    plain.local = false;
    assert_eq!(ModelGateway::new(plain).unwrap_err().code(), "MODEL-020");
    let mut tls = config(Dialect::Anthropic, "https://api.anthropic.com", &log);
    tls.local = false;
    assert!(ModelGateway::new(tls).is_ok());
}
