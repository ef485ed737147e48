//! What a page of another site, another name or another port can do: nothing.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

const LIST: &str = "GET /api/v1/runs";
const CODES: &str = "POST /api/v1/codes";

#[tokio::test]
async fn an_honest_client_gets_an_answer() {
    let lab = Lab::new().await;
    let reply = lab.honest(LIST, "").await;
    assert_eq!(
        (reply.status, reply.json()),
        (200, serde_json::json!({ "runs": [], "next": null }))
    );
    let info = lab.honest("GET /api/v1/service", "").await.json();
    assert_eq!(info["role"], "operator");
    assert_eq!(info["address"], lab.address().to_string());
    lab.end().await;
}

#[tokio::test]
async fn a_name_that_is_not_ours_is_refused_also_with_the_right_token() {
    let lab = Lab::new().await;
    let port = lab.address().port();
    for host in [
        "Host: evil.example".to_owned(),
        format!("Host: evil.example:{port}"),
        format!("Host: 127.0.0.1.evil.example:{port}"),
        "Host: 127.0.0.1".to_owned(),
        format!("Host: 127.0.0.1:{port}@evil.example"),
        format!("Host: 0.0.0.0:{port}"),
        format!("Host: 127.1:{port}"),
        "Host:".to_owned(),
    ] {
        let reply = lab.tcp(LIST, &[host.clone(), lab.bearer_line()], "").await;
        assert_eq!(reply.code(), "API-003", "{host}");
    }
    let none = lab.tcp(LIST, &[lab.bearer_line()], "").await;
    assert_eq!(none.code(), "API-003");
    let two = [lab.host_line(), "Host: evil.example".into(), lab.bearer_line()];
    assert!(matches!(lab.tcp(LIST, &two, "").await.status, 400 | 403));
    let absolute = format!("GET http://evil.example:{port}/api/v1/runs");
    let reply = lab.tcp(&absolute, &[lab.host_line(), lab.bearer_line()], "").await;
    assert_eq!(reply.code(), "API-003");
    for host in [format!("localhost:{port}"), format!("[::1]:{port}"), "box.example:8443".into()] {
        let reply = lab.tcp(LIST, &[format!("Host: {host}"), lab.bearer_line()], "").await;
        assert_eq!(reply.status, 200, "{host}");
    }
    lab.end().await;
}

#[tokio::test]
async fn a_page_of_another_origin_is_refused_also_with_the_right_token() {
    let lab = Lab::new().await;
    let port = lab.address().port();
    for line in [
        "Origin: https://evil.example".to_owned(),
        "Origin: null".to_owned(),
        format!("Origin: http://127.0.0.1:{}", port.wrapping_add(1)),
        "Origin: http://127.0.0.1".to_owned(),
        format!("Origin: http://127.0.0.1:{port}.evil.example"),
        "Sec-Fetch-Site: cross-site".to_owned(),
        "Sec-Fetch-Site: same-site".to_owned(),
    ] {
        let headers = [lab.host_line(), lab.bearer_line(), line.clone()];
        assert_eq!(lab.tcp(LIST, &headers, "").await.code(), "API-003", "{line}");
    }
    for line in [format!("Origin: http://127.0.0.1:{port}"), "Sec-Fetch-Site: same-origin".into()] {
        let headers = [lab.host_line(), lab.bearer_line(), line.clone()];
        assert_eq!(lab.tcp(LIST, &headers, "").await.status, 200, "{line}");
    }
    lab.end().await;
}

#[tokio::test]
async fn what_a_foreign_form_can_send_is_not_taken() {
    let lab = Lab::new().await;
    for kind in [
        "Content-Type: text/plain",
        "Content-Type: application/x-www-form-urlencoded",
        "Content-Type: multipart/form-data; boundary=x",
        "Content-Type: text/plain; application/json",
        "Content-Type: application/json; charset=utf-16",
        "X-Nothing: 1",
    ] {
        let headers = [lab.host_line(), lab.bearer_line(), kind.to_owned()];
        let reply = lab.tcp("POST /api/v1/runs/00000000/cancel", &headers, "{}").await;
        assert_eq!((reply.status, reply.code().as_str()), (415, "API-004"), "{kind}");
    }
    lab.end().await;
}

#[tokio::test]
async fn a_code_gives_one_session_that_is_no_cookie_and_ends_when_told() {
    let lab = Lab::new().await;
    let url = lab.bound.url.clone().unwrap();
    // A fragment: no server, log or referrer gets to see it.
    let (page, code) = url.split_once("#code=").unwrap();
    assert_eq!(page, format!("http://{}/", lab.address()));
    let body = serde_json::json!({ "code": code }).to_string();
    let headers = [lab.host_line(), JSON.to_owned()];
    let first = lab.tcp("POST /api/v1/session", &headers, &body).await;
    assert_eq!(first.status, 200, "{first:?}");
    assert!(!first.head.to_ascii_lowercase().contains("set-cookie"));
    let again = lab.tcp("POST /api/v1/session", &headers, &body).await;
    assert_eq!(again.code(), "API-001");

    let session = first.json()["session"].as_str().unwrap().to_owned();
    let headers = [lab.host_line(), format!("Authorization: Bearer {session}"), JSON.to_owned()];
    assert_eq!(lab.tcp(LIST, &headers, "").await.status, 200);
    // A browser session makes no further sessions.
    assert_eq!(lab.tcp(CODES, &headers, "{}").await.code(), "API-002");
    assert_eq!(lab.tcp("POST /api/v1/session/end", &headers, "{}").await.status, 200);
    assert_eq!(lab.tcp(LIST, &headers, "").await.code(), "API-001");
    // Neither as a cookie nor in the address.
    let cookie = [lab.host_line(), format!("Cookie: session={}", lab.token())];
    assert_eq!(lab.tcp(LIST, &cookie, "").await.code(), "API-001");
    let query = format!("{LIST}?token={}", lab.token());
    assert_eq!(lab.tcp(&query, &[lab.host_line()], "").await.code(), "API-001");
    lab.end().await;
}

#[tokio::test]
async fn the_local_socket_is_private_and_makes_codes() {
    let lab = Lab::new().await;
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&lab.place().socket()), 0o600);
    assert_eq!(mode(lab.place().dir()), 0o700);
    assert_eq!(mode(&lab.place().token()), 0o600);
    let headers = ["Host: localhost".to_owned(), JSON.to_owned()];
    let reply = lab.socket(CODES, &headers, "{}").await;
    assert_eq!(reply.status, 200, "{reply:?}");
    // A wrong token is refused here too, not overlooked.
    let wrong = [headers[0].clone(), headers[1].clone(), "Authorization: Bearer x".to_owned()];
    assert_eq!(lab.socket(CODES, &wrong, "{}").await.code(), "API-001");
    lab.end().await;
}

#[tokio::test]
async fn answers_are_problems_and_carry_the_headers_of_a_page_that_trusts_nobody() {
    let lab = Lab::new().await;
    let gone = lab.honest("GET /api/v2/nothing", "").await;
    assert_eq!((gone.status, gone.code().as_str()), (404, "API-007"));
    assert!(gone.head.contains("application/problem+json"), "{}", gone.head);
    assert_eq!(lab.honest("DELETE /api/v1/runs", "{}").await.code(), "API-013");
    assert_eq!(lab.honest("GET /api/v1/runs/00000000", "").await.code(), "LEDGER-006");
    assert_eq!(lab.honest("GET /api/v1/runs?limit=0", "").await.code(), "API-005");
    assert_eq!(lab.honest("GET /api/v1/runs?colour=red", "").await.code(), "API-005");
    assert_eq!(lab.honest("POST /api/v1/tasks", "{\"wish\":{\"x\":1}}").await.code(), "API-005");
    let page = lab.tcp("GET /", &[lab.host_line()], "").await;
    assert_eq!(page.status, 200);
    for header in [
        "content-security-policy: default-src 'none'",
        "x-frame-options: DENY",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
        "referrer-policy: no-referrer",
    ] {
        assert!(page.head.contains(header), "{header} in {}", page.head);
    }
    lab.end().await;
}

#[tokio::test]
async fn a_body_or_a_head_without_end_is_refused() {
    let lab = Lab::new().await;
    let long = "x".repeat(crate::guard::MAX_BODY_BYTES + 1);
    let reply = lab.honest("POST /api/v1/tasks", &long).await;
    assert_eq!((reply.status, reply.code().as_str()), (413, "API-006"));
    let header = format!("X-Long: {}", "x".repeat(4 * crate::server::MAX_HEAD_BYTES));
    let reply = lab.tcp(LIST, &[lab.host_line(), lab.bearer_line(), header], "").await;
    assert_eq!(reply.status, 431);
    lab.end().await;
}

#[tokio::test]
async fn secrets_are_taken_over_the_socket_alone() {
    let lab = Lab::new().await;
    let body = r#"{"wish":{"checkout":"/nowhere","command":["true"]},"secrets":{"KEY":"s3cret"}}"#;
    let reply = lab.honest("POST /api/v1/tasks", body).await;
    assert_eq!((reply.status, reply.code().as_str()), (403, "API-011"));
    let headers = ["Host: localhost".to_owned(), JSON.to_owned()];
    let reply = lab.socket("POST /api/v1/tasks", &headers, body).await;
    assert!(reply.code().starts_with("WORK-"), "{reply:?}");
    assert!(!reply.body.contains("s3cret"));
    lab.end().await;
}

#[tokio::test]
async fn one_service_per_data_directory_and_only_on_loopback() {
    let lab = Lab::new().await;
    let second = Server::bind(Arc::clone(&lab.host), Box::new(|_| None), free_port()).await;
    assert_eq!(second.unwrap_err().code(), "API-020");
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = host(dir.path()).await;
    let wide = ServeOptions { listen: Some("0.0.0.0:0".parse().unwrap()), ..free_port() };
    let error = Server::bind(elsewhere, Box::new(|_| None), wide).await.unwrap_err();
    assert_eq!(error.code(), "API-023");
    // The next one finds the socket of one that is gone, and takes its place.
    let socket = lab.place().socket();
    let Lab { dir: _kept, host: again, stop, served, .. } = lab;
    let _ = stop.unwrap().send(());
    served.await.unwrap();
    assert!(socket.exists());
    Server::bind(again, Box::new(|_| None), free_port()).await.unwrap();
}
