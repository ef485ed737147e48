//! The scripted server over real sockets: every dialect, streamed and whole, and every fault.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use cofferdam_testkit::model::{Ended, Fault, ModelServer, Script, Turn, Usage};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

struct Reply {
    status: u16,
    headers: http::HeaderMap,
    text: String,
    broken: bool,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }

    /// The data of each event but `[DONE]`.
    fn events(&self) -> Vec<Value> {
        let data = self.text.lines().filter_map(|l| l.strip_prefix("data: "));
        data.filter(|d| *d != "[DONE]").map(|d| serde_json::from_str(d).unwrap()).collect()
    }
}

async fn send(server: &ModelServer, path: &str, body: &Value) -> Reply {
    let post = http::Request::post(path).header("anthropic-version", "2023-06-01");
    exchange(server, post.body(Full::from(body.to_string())).unwrap()).await
}

async fn exchange(server: &ModelServer, request: http::Request<Full<bytes::Bytes>>) -> Reply {
    #[expect(clippy::disallowed_methods, reason = "the client side of a test")]
    let stream = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut response = sender.send_request(request).await.unwrap();
    let (mut bytes, mut broken) = (Vec::new(), false);
    while let Some(frame) = response.frame().await {
        match frame {
            Ok(frame) => bytes.extend_from_slice(&frame.into_data().unwrap()),
            Err(_) => broken = true,
        }
    }
    drop(sender);
    let _ = driver.await.unwrap();
    Reply {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        text: String::from_utf8(bytes).unwrap(),
        broken,
    }
}

const USAGE: Usage = Usage { input: 100, cache_read: 40, cache_write: 7, output: 20, reasoning: 5 };

fn script() -> Script {
    let first = Turn { say: "Reading, größer".into(), think: "hm".into(), ..Turn::default() };
    let first = first
        .and_call("read_file", json!({"path": "src/a.rs"}))
        .and_call("plan", json!({"steps": ["a"]}));
    Script::new([first.with_usage(USAGE), Turn::say("Done.")])
}

#[tokio::test]
async fn anthropic_streams_and_takes_the_results_back() {
    let server = ModelServer::start(script()).unwrap();
    let mut request = json!({
        "model": "m", "max_tokens": 100, "stream": true, "messages": [{"role": "user", "content": "go"}],
    });
    let reply = send(&server, "/v1/messages", &request).await;
    assert_eq!(reply.headers["content-type"], "text/event-stream");
    let events = reply.events();
    assert_eq!(events[0]["type"], "message_start");
    assert_eq!(events[0]["message"]["usage"]["cache_read_input_tokens"], 40);
    let text: String = events.iter().filter_map(|e| e["delta"]["text"].as_str()).collect();
    assert_eq!(text, "Reading, größer");
    let args: String = events
        .iter()
        .filter(|e| e["index"] == 2)
        .filter_map(|e| e["delta"]["partial_json"].as_str())
        .collect();
    assert_eq!(args, r#"{"path":"src/a.rs"}"#);
    let last = &events[events.len() - 2];
    assert_eq!(last["delta"]["stop_reason"], "tool_use");
    assert_eq!(last["usage"]["output_tokens"], 25);

    request["stream"] = json!(false);
    let whole = send(&server, "/v1/messages", &request).await.json();
    assert_eq!(whole["content"][2]["name"], "read_file");
    assert_eq!(whole["usage"]["cache_creation_input_tokens"], 7);

    let messages = request["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": whole["content"]}));
    let unanswered = send(&server, "/v1/messages", &request).await;
    assert_eq!(
        unanswered.status, 200,
        "an unanswered call in last place is a prefill, not an error"
    );
    let results: Vec<Value> = [2, 3]
        .map(|at| json!({"type": "tool_result", "tool_use_id": whole["content"][at]["id"], "content": "x"}))
        .into();
    request["messages"]
        .as_array_mut()
        .unwrap()
        .push(json!({"role": "user", "content": results[..1]}));
    assert_eq!(send(&server, "/v1/messages", &request).await.status, 400);
    request["messages"][2]["content"] = json!(results);
    let second = send(&server, "/v1/messages", &request).await.json();
    assert_eq!(second["content"][0]["text"], "Done.");
    assert_eq!(second["stop_reason"], "end_turn");
}

#[tokio::test]
async fn chat_reports_stream_usage_only_when_asked() {
    let server = ModelServer::start(script()).unwrap();
    let mut request =
        json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "go"}]});
    let reply = send(&server, "/v1/chat/completions", &request).await;
    assert!(reply.text.ends_with("data: [DONE]\n\n"));
    assert!(reply.events().iter().all(|e| e.get("usage").is_none()));

    request["stream_options"] = json!({"include_usage": true});
    let events = send(&server, "/v1/chat/completions", &request).await.events();
    let last = events.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["prompt_tokens"], 147);
    assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 40);
    let args: String = events
        .iter()
        .filter(|e| e["choices"][0]["delta"]["tool_calls"][0]["index"] == 1)
        .filter_map(|e| e["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str())
        .collect();
    assert_eq!(args, r#"{"steps":["a"]}"#);

    request["stream"] = json!(false);
    let whole = send(&server, "/v1/chat/completions", &request).await.json();
    let message = whole["choices"][0]["message"].clone();
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
    let ids = [0, 1].map(|at| message["tool_calls"][at]["id"].clone());
    let messages = request["messages"].as_array_mut().unwrap();
    messages.push(message);
    messages.push(json!({"role": "tool", "tool_call_id": ids[0], "content": "x"}));
    assert_eq!(send(&server, "/v1/chat/completions", &request).await.status, 400);
    request["messages"]
        .as_array_mut()
        .unwrap()
        .push(json!({"role": "tool", "tool_call_id": ids[1], "content": "x"}));
    let second = send(&server, "/v1/chat/completions", &request).await.json();
    assert_eq!(second["choices"][0]["message"]["content"], "Done.");
}

#[tokio::test]
async fn responses_streams_numbered_events_and_takes_the_items_back() {
    let server = ModelServer::start(script()).unwrap();
    let mut request = json!({"model": "m", "stream": true, "input": "go"});
    let events = send(&server, "/v1/responses", &request).await.events();
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], at);
    }
    let done = &events.last().unwrap()["response"];
    assert_eq!(done["usage"]["input_tokens_details"]["cached_tokens"], 40);
    let text: String = events
        .iter()
        .filter(|e| e["type"] == "response.output_text.delta")
        .filter_map(|e| e["delta"].as_str())
        .collect();
    assert_eq!(text, "Reading, größer");

    request["stream"] = json!(false);
    let whole = send(&server, "/v1/responses", &request).await.json();
    assert_eq!(whole["output"], done["output"]);
    let mut input = vec![json!({"role": "user", "content": "go"})];
    input.extend(whole["output"].as_array().unwrap().iter().cloned());
    input.push(json!({"type": "function_call_output", "call_id": whole["output"][2]["call_id"], "output": "x"}));
    request["input"] = json!(input);
    assert_eq!(send(&server, "/v1/responses", &request).await.status, 400);
    input.push(json!({"type": "function_call_output", "call_id": whole["output"][3]["call_id"], "output": "x"}));
    request["input"] = json!(input);
    let second = send(&server, "/v1/responses", &request).await.json();
    assert_eq!(second["output"][0]["content"][0]["text"], "Done.");
}

#[tokio::test]
async fn gemini_streams_sse_or_one_array() {
    let server = ModelServer::start(script()).unwrap();
    let mut request = json!({"contents": [{"role": "user", "parts": [{"text": "go"}]}]});
    let path = "/v1beta/models/m:streamGenerateContent";
    let events = send(&server, &format!("{path}?alt=sse"), &request).await.events();
    let array = send(&server, path, &request).await.json();
    assert_eq!(json!(events), array);
    let last = events.last().unwrap();
    assert_eq!(last["usageMetadata"]["promptTokenCount"], 147);
    assert_eq!(last["usageMetadata"]["cachedContentTokenCount"], 40);
    assert_eq!(last["usageMetadata"]["thoughtsTokenCount"], 5);
    assert_eq!(last["candidates"][0]["content"]["parts"][0]["functionCall"]["name"], "read_file");

    let whole = send(&server, "/v1beta/models/m:generateContent", &request).await.json();
    let contents = request["contents"].as_array_mut().unwrap();
    contents.push(whole["candidates"][0]["content"].clone());
    let result =
        |name: &str| json!({"functionResponse": {"name": name, "response": {"output": "x"}}});
    contents.push(json!({"role": "user", "parts": [result("read_file")]}));
    assert_eq!(send(&server, "/v1beta/models/m:generateContent", &request).await.status, 400);
    request["contents"][2]["parts"] = json!([result("read_file"), result("plan")]);
    let second = send(&server, "/v1beta/models/m:generateContent", &request).await.json();
    assert_eq!(second["candidates"][0]["content"]["parts"][0]["text"], "Done.");
}

#[tokio::test]
async fn a_wrong_key_is_refused_in_the_providers_own_shape() {
    let server = ModelServer::start(script()).unwrap();
    server.require_key("right");
    for (path, header, status, shape) in [
        ("/v1/messages", "x-api-key", 401, "/error/type"),
        ("/v1/chat/completions", "authorization", 401, "/error/code"),
        ("/v1/responses", "authorization", 401, "/error/code"),
        ("/v1beta/models/m:generateContent", "x-goog-api-key", 400, "/error/status"),
    ] {
        let with = |key: &str| {
            let key =
                if header == "authorization" { format!("Bearer {key}") } else { key.to_owned() };
            http::Request::post(path).header(header, key).body(Full::from("{}")).unwrap()
        };
        let wrong = exchange(&server, with("wrong")).await;
        assert_eq!(wrong.status, status, "{path}");
        assert!(
            wrong.json().pointer(shape).is_some_and(Value::is_string),
            "{path}: {}",
            wrong.text
        );
        let right = exchange(&server, with("right")).await;
        assert!(
            !right.text.to_lowercase().contains("api key") && !right.text.contains("api-key"),
            "{}",
            right.text
        );
    }
}

fn chat() -> Value {
    json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "go"}]})
}

#[tokio::test]
async fn a_fault_may_pass_after_some_tries() {
    let fault =
        Fault { status: Some(429), retry_after: Some(3), times: Some(1), ..Fault::default() };
    let server = ModelServer::start(Script::new([Turn::say("hi").with_fault(fault)])).unwrap();
    let refused = send(&server, "/v1/chat/completions", &chat()).await;
    assert_eq!((refused.status, &refused.headers["retry-after"]), (429, &"3".parse().unwrap()));
    assert_eq!(send(&server, "/v1/chat/completions", &chat()).await.status, 200);
}

#[tokio::test]
async fn a_cut_breaks_the_answer_in_the_middle() {
    let fault = Fault { cut_after: Some(3), ..Fault::default() };
    let server =
        ModelServer::start(Script::new([Turn::say("a long answer in pieces").with_fault(fault)]))
            .unwrap();
    let reply = send(&server, "/v1/chat/completions", &chat()).await;
    assert!(reply.broken && !reply.text.contains("[DONE]"));
    assert_eq!(reply.events().len(), 3);
    assert_eq!(server.requests()[0].ended, Ended::Cut);
}

#[tokio::test]
async fn split_pieces_carry_the_same_bytes_and_omitted_usage_is_absent() {
    let split = Fault { split_bytes: Some(3), omit_usage: true, ..Fault::default() };
    let server = ModelServer::start(Script::new([Turn::say("größer")])).unwrap();
    let odd = ModelServer::start(Script::new([Turn::say("größer").with_fault(split)])).unwrap();
    let plain = send(&server, "/v1/chat/completions", &chat()).await;
    assert_eq!(plain.text, send(&odd, "/v1/chat/completions", &chat()).await.text);
    let request =
        json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]});
    assert!(send(&odd, "/v1/messages", &request).await.json().get("usage").is_none());
}

#[tokio::test]
async fn a_client_that_leaves_is_seen() {
    let hang = Fault { hang: true, ..Fault::default() };
    let stall = Fault { stall_after: Some(1), ..Fault::default() };
    for fault in [hang, stall] {
        let server = ModelServer::start(Script::new([Turn::say("hi").with_fault(fault)])).unwrap();
        let request = chat();
        let client = send(&server, "/v1/chat/completions", &request);
        tokio::select! {
            _ = client => panic!("answered"),
            _ = server.until(|r| r.len() == 1 && r[0].turn.is_some()) => {}
        }
        // The client's future was dropped, but its connection task lives until the sender is gone.
        let seen = server.until(|r| r[0].ended != Ended::No).await;
        assert_eq!(seen[0].ended, Ended::ClientGone);
    }
}

#[tokio::test]
async fn side_requests_without_tools_can_have_their_own_answer() {
    let script =
        Script { without_tools: Some(Turn::say("A title")), ..Script::new([Turn::say("work")]) };
    let server = ModelServer::start(script).unwrap();
    let mut request = json!({"model": "m", "messages": [{"role": "user", "content": "go"}]});
    let side = send(&server, "/v1/chat/completions", &request).await.json();
    assert_eq!(side["choices"][0]["message"]["content"], "A title");
    request["tools"] = json!([{"type": "function", "function": {"name": "plan"}}]);
    let work = send(&server, "/v1/chat/completions", &request).await.json();
    assert_eq!(work["choices"][0]["message"]["content"], "work");
}
