//! Tables: each refusal beside its permitted twin, per dialect.

use cofferdam_run::spec::Dialect;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const MODEL: &str = "m-1";

fn target(model: &str) -> Target {
    let path = format!("/v1beta/models/{model}:generateContent");
    Target { path, query: None, model: Some(model.to_owned()), stream: Some(false) }
}

fn admit_with(policy: &GatewayPolicy, dialect: Dialect, body: &Value) -> Result<Admitted, Refusal> {
    let rules = Rules { dialect, model: MODEL, policy, openai: false };
    rules.admit(&target(MODEL), false, Json::parse(body.to_string().as_bytes()).unwrap())
}

fn admit(dialect: Dialect, body: &Value) -> Result<Admitted, Refusal> {
    admit_with(&GatewayPolicy::default(), dialect, body)
}

fn base(dialect: Dialect) -> Value {
    match dialect {
        Dialect::Anthropic => json!({
            "model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": "x"}],
        }),
        Dialect::OpenaiChat => {
            json!({"model": MODEL, "messages": [{"role": "user", "content": "x"}]})
        }
        Dialect::OpenaiResponses => {
            json!({"model": MODEL, "input": [{"role": "user", "content": "x"}]})
        }
        Dialect::Gemini => json!({"contents": [{"role": "user", "parts": [{"text": "x"}]}]}),
    }
}

/// `base` with the fields of `extra`.
fn with(dialect: Dialect, extra: &Value) -> Value {
    let mut body = base(dialect);
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn passes(dialect: Dialect, extra: Value) {
    if let Err(refusal) = admit(dialect, &with(dialect, &extra)) {
        panic!("{extra}: {refusal:?}");
    }
}

fn refused(dialect: Dialect, extra: Value, code: &str) {
    match admit(dialect, &with(dialect, &extra)) {
        Err(refusal) => assert_eq!(refusal.code, code, "{extra}"),
        Ok(_) => panic!("{extra} was admitted"),
    }
}

fn body_of(admitted: Admitted, granted: u64) -> Value {
    serde_json::from_slice(&admitted.into_body(granted)).unwrap()
}

fn user(content: Value) -> Value {
    json!({"messages": [{"role": "user", "content": content}]})
}

#[test]
fn only_the_runs_model_is_asked() {
    for dialect in [Dialect::Anthropic, Dialect::OpenaiChat, Dialect::OpenaiResponses] {
        passes(dialect, json!({}));
        for other in [json!("m-2"), json!("m-1 "), json!("M-1"), json!(["m-1"]), json!(null)] {
            refused(dialect, json!({"model": other}), codes::MODEL);
        }
        let policy =
            GatewayPolicy { models: ["m-2".to_owned()].into(), ..GatewayPolicy::default() };
        assert!(admit_with(&policy, dialect, &with(dialect, &json!({"model": "m-2"}))).is_ok());
    }
    let policy = GatewayPolicy::default();
    let rules = Rules { dialect: Dialect::Gemini, model: MODEL, policy: &policy, openai: false };
    let body = || Json::parse(base(Dialect::Gemini).to_string().as_bytes()).unwrap();
    assert!(rules.admit(&target(MODEL), false, body()).is_ok());
    assert_eq!(rules.admit(&target("m-2"), false, body()).unwrap_err().code, codes::MODEL);
    passes(Dialect::Gemini, json!({"model": "models/m-1"}));
    refused(Dialect::Gemini, json!({"model": "models/m-2"}), codes::MODEL);
}

#[test]
fn anthropic_tools_are_the_clients_own() {
    let d = Dialect::Anthropic;
    for tool in [
        json!({"name": "read_file", "input_schema": {"type": "object"}}),
        json!({"type": "custom", "name": "x", "input_schema": {}}),
        json!({"type": "bash_20250124", "name": "bash"}),
        json!({"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}),
    ] {
        passes(d, json!({"tools": [tool]}));
    }
    for kind in [
        "web_search_20250305",
        "web_fetch_20250910",
        "code_execution_20250825",
        "computer_20250124",
        "tool_search_tool_regex_20251119",
        "bash_evil",
        "something_new",
    ] {
        refused(d, json!({"tools": [{"type": kind, "name": "x"}]}), codes::TOOL);
    }
    refused(d, json!({"tools": [{"type": 7}]}), codes::MALFORMED);
    refused(d, json!({"tools": {"type": "web_search_20250305"}}), codes::MALFORMED);
    refused(d, json!({"container": "c"}), codes::TOOL);
    refused(d, json!({"mcp_servers": [{"type": "url", "url": "https://x"}]}), codes::TOOL);
    passes(d, json!({"container": null}));
    let policy = GatewayPolicy {
        types: ["web_search_20250305".to_owned()].into(),
        ..GatewayPolicy::default()
    };
    let body = with(d, &json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}));
    assert!(admit_with(&policy, d, &body).is_ok());
}

#[test]
fn anthropic_content_is_inline() {
    let d = Dialect::Anthropic;
    let source = |source: Value| user(json!([{"type": "image", "source": source}]));
    passes(d, source(json!({"type": "base64", "media_type": "image/png", "data": "AAAA"})));
    refused(d, source(json!({"type": "url", "url": "https://x/y.png"})), codes::CONTENT);
    refused(d, source(json!({"type": "file", "file_id": "file_1"})), codes::STORED);
    refused(d, user(json!([{"type": "container_upload", "file_id": "file_1"}])), codes::CONTENT);
    refused(d, user(json!([{"type": "brand_new"}])), codes::CONTENT);
    let nested = |source: Value| {
        let inner = json!([{"type": "document", "source": source}]);
        user(json!([{"type": "tool_result", "tool_use_id": "t", "content": inner}]))
    };
    passes(d, nested(json!({"type": "text", "media_type": "text/plain", "data": "x"})));
    refused(d, nested(json!({"type": "url", "url": "https://x/y.pdf"})), codes::CONTENT);
    refused(
        d,
        json!({"system": [{"type": "image", "source": {"type": "url", "url": "https://x"}}]}),
        codes::CONTENT,
    );
    let policy = GatewayPolicy { url_inputs: true, ..GatewayPolicy::default() };
    let body = with(d, &source(json!({"type": "url", "url": "https://x/y.png"})));
    assert!(admit_with(&policy, d, &body).is_ok());
}

#[test]
fn chat_tools_and_content_are_the_clients_own() {
    let d = Dialect::OpenaiChat;
    passes(d, json!({"tools": [{"type": "function", "function": {"name": "x"}}]}));
    for kind in ["web_search", "mcp", "code_interpreter", "new"] {
        refused(d, json!({"tools": [{"type": kind}]}), codes::TOOL);
    }
    refused(d, json!({"web_search_options": {}}), codes::TOOL);
    let image = |url: &str| user(json!([{"type": "image_url", "image_url": {"url": url}}]));
    passes(d, image("data:image/png;base64,AAAA"));
    for url in ["https://x/y.png", "HTTP://x", "file:///etc/passwd", "gs://b/o", ""] {
        refused(d, image(url), codes::CONTENT);
    }
    refused(d, user(json!([{"type": "image_url", "image_url": "https://x"}])), codes::CONTENT);
    passes(
        d,
        user(json!([{"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}}])),
    );
    refused(d, user(json!([{"type": "file", "file": {"file_id": "file-1"}}])), codes::STORED);
    refused(
        d,
        user(json!([{"type": "file", "file": {"file_data": "https://x/y.pdf"}}])),
        codes::CONTENT,
    );
    refused(d, json!({"n": 2}), codes::FIELD);
    passes(d, json!({"n": 1}));
    refused(d, json!({"service_tier": "priority"}), codes::FIELD);
    refused(d, json!({"plugins": [{"id": "web"}]}), codes::FIELD);
    refused(d, json!({"max_tokens": "many"}), codes::FIELD);
    refused(d, json!({"max_tokens": 5, "max_completion_tokens": 5}), codes::FIELD);
    refused(d, json!({"stream": "yes"}), codes::FIELD);
}

#[test]
fn chat_reports_usage_and_stores_nothing() {
    let d = Dialect::OpenaiChat;
    let body = with(
        d,
        &json!({"stream": true, "stream_options": {"include_usage": false}, "store": true}),
    );
    let sent = body_of(admit(d, &body).unwrap(), ASSUMED_OUTPUT_TOKENS);
    assert_eq!(sent["stream_options"]["include_usage"], true);
    assert_eq!(sent["store"], false);
    let plain = body_of(admit(d, &base(d)).unwrap(), ASSUMED_OUTPUT_TOKENS);
    assert_eq!(plain, base(d), "nothing is added where nothing must be");
}

#[test]
fn responses_keep_no_state_and_run_no_tool_at_the_provider() {
    let d = Dialect::OpenaiResponses;
    passes(
        d,
        json!({"tools": [{"type": "function", "name": "x"}, {"type": "custom", "name": "y"}]}),
    );
    for kind in [
        "web_search",
        "web_search_preview",
        "file_search",
        "code_interpreter",
        "image_generation",
        "mcp",
        "computer_use_preview",
        "shell",
        "new",
    ] {
        refused(d, json!({"tools": [{"type": kind}]}), codes::TOOL);
        refused(
            d,
            json!({"tools": [{"type": "namespace", "tools": [{"type": kind}]}]}),
            codes::TOOL,
        );
        refused(d, json!({"tool_choice": {"type": kind}}), codes::TOOL);
    }
    refused(d, json!({"previous_response_id": "resp_1"}), codes::STORED);
    refused(d, json!({"conversation": "conv_1"}), codes::STORED);
    refused(d, json!({"background": true}), codes::STORED);
    refused(d, json!({"prompt": {"id": "pmpt_1"}}), codes::STORED);
    passes(d, json!({"previous_response_id": null, "background": false}));
    refused(d, json!({"input": [{"type": "item_reference", "id": "x"}]}), codes::STORED);
    refused(d, json!({"include": ["file_search_call.results"]}), codes::FIELD);
    passes(d, json!({"include": ["reasoning.encrypted_content"]}));
    refused(d, json!({"some_new_field": 1}), codes::FIELD);
    for stored in [json!({}), json!({"store": true}), json!({"store": null})] {
        let sent = body_of(admit(d, &with(d, &stored)).unwrap(), ASSUMED_OUTPUT_TOKENS);
        assert_eq!(sent["store"], false);
    }
}

#[test]
fn responses_content_is_inline() {
    let d = Dialect::OpenaiResponses;
    let content = |part: Value| json!({"input": [{"role": "user", "content": [part]}]});
    passes(d, content(json!({"type": "input_image", "image_url": "data:image/png;base64,AAAA"})));
    refused(d, content(json!({"type": "input_image", "image_url": "https://x"})), codes::CONTENT);
    refused(
        d,
        content(json!({"type": "input_image", "image_url": {"url": "https://x"}})),
        codes::MALFORMED,
    );
    refused(d, content(json!({"type": "input_image", "file_id": "file-1"})), codes::STORED);
    passes(d, content(json!({"type": "input_file", "file_data": "AAAA", "filename": "a.pdf"})));
    refused(d, content(json!({"type": "input_file", "file_url": "https://x"})), codes::CONTENT);
    refused(d, content(json!({"type": "input_file", "file_id": "file-1"})), codes::STORED);
    refused(d, content(json!({"type": "new"})), codes::CONTENT);
    refused(d, json!({"input": [{"type": "web_search_call", "id": "x"}]}), codes::CONTENT);
    refused(
        d,
        json!({"input": [{"type": "mcp_approval_response", "approve": true}]}),
        codes::CONTENT,
    );
    let output = |output: Value| json!({"input": [{"type": "function_call_output", "call_id": "c", "output": output}]});
    passes(d, output(json!("x")));
    refused(d, output(json!([{"type": "input_image", "image_url": "https://x"}])), codes::CONTENT);
}

#[test]
fn gemini_is_read_in_both_spellings() {
    let d = Dialect::Gemini;
    passes(d, json!({"tools": [{"functionDeclarations": [{"name": "x"}]}]}));
    passes(d, json!({"tools": [{"function_declarations": [{"name": "x"}]}]}));
    for tool in [
        "googleSearch",
        "google_search",
        "googleSearchRetrieval",
        "google_search_retrieval",
        "urlContext",
        "url_context",
        "codeExecution",
        "code_execution",
        "fileSearch",
        "googleMaps",
        "computerUse",
        "somethingNew",
    ] {
        refused(d, json!({"tools": [{tool: {}}]}), codes::TOOL);
        refused(d, json!({"tools": [{"functionDeclarations": [], tool: {}}]}), codes::TOOL);
        refused(d, json!({"tools": {tool: {}}}), codes::TOOL);
    }
    refused(d, json!({"cachedContent": "cachedContents/x"}), codes::STORED);
    refused(d, json!({"cached_content": "cachedContents/x"}), codes::STORED);
    refused(d, json!({"generationConfig": {}, "generation_config": {}}), codes::MALFORMED);
    refused(d, json!({"newField": 1}), codes::FIELD);
    refused(d, json!({"generationConfig": {"candidateCount": 2}}), codes::FIELD);
    refused(d, json!({"generation_config": {"candidate_count": 2}}), codes::FIELD);
    refused(
        d,
        json!({"generationConfig": {"responseModalities": ["TEXT", "IMAGE"]}}),
        codes::FIELD,
    );
    passes(
        d,
        json!({"generationConfig": {"temperature": 0.5, "thinkingConfig": {"thinkingBudget": 100}}}),
    );
    let part = |part: Value| json!({"contents": [{"role": "user", "parts": [part]}]});
    passes(d, part(json!({"inlineData": {"mimeType": "image/png", "data": "AAAA"}})));
    for key in ["fileData", "file_data"] {
        refused(d, part(json!({key: {"fileUri": "https://x"}})), codes::CONTENT);
        let nested =
            json!({"functionResponse": {"name": "x", "response": {}, "parts": [{key: {}}]}});
        refused(d, part(nested), codes::CONTENT);
        refused(d, json!({"systemInstruction": {"parts": [{key: {}}]}}), codes::CONTENT);
        refused(d, json!({"contents": {"parts": {key: {}}}}), codes::CONTENT);
    }
    refused(d, part(json!({"executableCode": {"code": "x"}})), codes::CONTENT);
}

#[test]
fn gemini_counting_checks_the_request_inside() {
    let policy = GatewayPolicy::default();
    let rules = Rules { dialect: Dialect::Gemini, model: MODEL, policy: &policy, openai: false };
    let count = |body: Value| {
        rules.admit(&target(MODEL), true, Json::parse(body.to_string().as_bytes()).unwrap())
    };
    let inner = |tool: &str| json!({"generateContentRequest": {"model": "models/m-1", "contents": [], "tools": [{tool: []}]}});
    assert!(count(inner("functionDeclarations")).is_ok());
    assert_eq!(count(inner("googleSearch")).unwrap_err().code, codes::TOOL);
    assert_eq!(
        count(json!({"generateContentRequest": {"model": "models/m-2"}})).unwrap_err().code,
        codes::MODEL
    );
}

#[test]
fn the_output_is_bounded_by_what_was_granted() {
    for (dialect, extra, granted, place, expect) in [
        (Dialect::Anthropic, json!({"max_tokens": 500}), 200, "/max_tokens", json!(200)),
        (Dialect::Anthropic, json!({"max_tokens": 500}), 900, "/max_tokens", json!(500)),
        (Dialect::OpenaiChat, json!({"max_tokens": 500}), 200, "/max_tokens", json!(200)),
        (
            Dialect::OpenaiChat,
            json!({"max_completion_tokens": 500}),
            200,
            "/max_completion_tokens",
            json!(200),
        ),
        (Dialect::OpenaiChat, json!({}), 200, "/max_tokens", json!(200)),
        (Dialect::OpenaiChat, json!({}), 30_000, "/max_tokens", json!(INSERTED_OUTPUT_TOKENS)),
        (
            Dialect::OpenaiResponses,
            json!({"max_output_tokens": null}),
            200,
            "/max_output_tokens",
            json!(200),
        ),
        (Dialect::Gemini, json!({}), 200, "/generationConfig/maxOutputTokens", json!(200)),
        (
            Dialect::Gemini,
            json!({"generation_config": {"max_output_tokens": 500}}),
            200,
            "/generation_config/max_output_tokens",
            json!(200),
        ),
    ] {
        let admitted = admit(dialect, &with(dialect, &extra)).unwrap();
        assert_eq!(body_of(admitted, granted).pointer(place), Some(&expect), "{extra}");
    }
    let openai = Rules {
        dialect: Dialect::OpenaiChat,
        model: MODEL,
        policy: &GatewayPolicy::default(),
        openai: true,
    };
    let body = Json::parse(base(Dialect::OpenaiChat).to_string().as_bytes()).unwrap();
    let sent = body_of(openai.admit(&target(MODEL), false, body).unwrap(), 200);
    assert_eq!(sent["max_completion_tokens"], 200, "OpenAI itself wants the newer name");
}

#[test]
fn an_image_is_not_reserved_for_by_its_bytes() {
    let data = "A".repeat(400_000);
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
    let body = with(Dialect::Anthropic, &user(json!([image])));
    let bytes = body.to_string().len();
    let tokens = admit(Dialect::Anthropic, &body).unwrap().input_tokens(bytes);
    assert!((IMAGE_TOKENS..IMAGE_TOKENS + 200).contains(&tokens), "{tokens}");
}

#[test]
fn thinking_needs_more_room_than_its_budget() {
    let body = with(
        Dialect::Anthropic,
        &json!({"max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 2000}}),
    );
    assert_eq!(admit(Dialect::Anthropic, &body).unwrap().least_output(), 2001);
}

/// JSON made of the names that the checkers look for, in places where they may not expect them.
fn odd_json() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "model",
        "messages",
        "input",
        "contents",
        "parts",
        "content",
        "role",
        "type",
        "tools",
        "source",
        "url",
        "image_url",
        "file",
        "file_id",
        "inlineData",
        "inline_data",
        "fileData",
        "generationConfig",
        "max_tokens",
        "thinking",
        "stream",
        "stream_options",
        "tool_result",
        "image",
        "base64",
        "function",
        "message",
        "user",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        names.clone().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(names.clone(), inner, 0..5).prop_map(|map| Value::Object(
                map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
            )),
        ]
    })
}

proptest! {
    #[test]
    fn no_body_makes_a_checker_panic(body in odd_json(), granted in any::<u64>()) {
        for dialect in [Dialect::Anthropic, Dialect::OpenaiChat, Dialect::OpenaiResponses, Dialect::Gemini] {
            let mut body = body.clone();
            if let (Some(body), true) = (body.as_object_mut(), dialect != Dialect::Gemini) {
                body.insert("model".to_owned(), json!(MODEL));
            }
            if let Ok(admitted) = admit(dialect, &body) {
                admitted.input_tokens(body.to_string().len());
                admitted.least_output();
                let sent = body_of(admitted, granted);
                prop_assert!(admit(dialect, &sent).is_ok(), "what was admitted is not admitted again: {sent}");
            }
        }
    }
}
