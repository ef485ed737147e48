//! The program around the server: address file, key from the environment, end of standard input.

use std::process::{Command, Stdio};

#[test]
#[expect(clippy::disallowed_methods, reason = "starts the program under test")]
fn it_writes_its_address_serves_and_ends_with_its_standard_input() {
    use std::io::{Read as _, Write as _};

    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.json");
    let address_file = folder.path().join("address");
    std::fs::write(&script, r#"{"turns":[{"say":"hi"}]}"#).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_scripted-model"))
        .args(["--script".as_ref(), script.as_os_str()])
        .args(["--address-file".as_ref(), address_file.as_os_str()])
        .args(["--require-key-env", "SCRIPTED_KEY"])
        .env("SCRIPTED_KEY", "k")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let address = loop {
        match std::fs::read_to_string(&address_file) {
            Ok(address) => break address,
            Err(_) => assert!(program.try_wait().unwrap().is_none(), "it ended early"),
        }
        std::thread::yield_now();
    };
    let body = r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#;
    let ask = |key: &str| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        write!(
            stream,
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask("k").contains(r#""content":"hi""#));
    assert!(ask("other").starts_with("HTTP/1.1 401 "));
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}
